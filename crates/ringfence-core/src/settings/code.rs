//! Settings for running code: languages, warm interpreters, and the lint of imports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::audit::RecordedRuns;

/// Settings for running code.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CodeConfig {
    /// Action of the lint of imports on a listed module; the default is `off`. The lint isolates
    /// nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_imports: Option<BlockImports>,
    /// Modules that the lint looks for, with their submodules. The default is `os`, `subprocess`,
    /// `shutil`, `socket`, `ctypes`, `multiprocessing`, `pty` and `signal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imports: Option<Vec<PythonModule>>,
    /// Runs whose source code is kept in their records; the default is `on_error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_code: Option<RecordedRuns>,
    /// Number of interpreters of a language that wait for code, where a pool of interpreters is
    /// kept. The default is 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm: Option<usize>,
    /// Modules that interpreters import while the interpreters wait. The default is `json` and
    /// `re`, and also `numpy` and `pandas` where these modules are installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preload: Option<Vec<PythonModule>>,
    /// Languages by name, in addition to the built-in `python`, `bash` and `javascript`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "languages")]
    pub languages: BTreeMap<String, Language>,
}

/// Merged settings for running code, in addition to the policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeSettings {
    /// Action of the lint when it finds a listed import. The lint isolates nothing.
    pub block_imports: BlockImports,
    /// Modules that the lint looks for, including their submodules.
    pub imports: Vec<PythonModule>,
    /// Runs whose code is kept in the execution record.
    pub store_code: RecordedRuns,
    /// Number of interpreters of a language that wait for code, where a pool of them is kept.
    pub warm: usize,
    /// Modules that interpreters import while they wait.
    ///
    /// The default is `json` and `re`, and also `numpy` and `pandas` where they are installed.
    pub preload: Option<Vec<PythonModule>>,
    /// All languages, by name.
    pub languages: BTreeMap<String, Language>,
    /// Names of the languages that the project's file added.
    ///
    /// These languages are run only in a sandbox that isolates. Sandboxed code may have written
    /// their commands, and without isolation those commands would run on the host.
    pub project_languages: BTreeSet<String>,
}

impl Default for CodeSettings {
    fn default() -> CodeSettings {
        CodeSettings::from_config(&CodeConfig::default(), &BTreeSet::new())
    }
}

impl CodeSettings {
    /// Default of `code.warm`: one interpreter can run while the other waits.
    pub(super) const DEFAULT_WARM: usize = 2;

    pub(super) fn from_config(
        config: &CodeConfig,
        from_project: &BTreeSet<String>,
    ) -> CodeSettings {
        let mut languages = Language::built_in();
        languages.extend(config.languages.clone());
        CodeSettings {
            block_imports: config.block_imports.unwrap_or_default(),
            imports: config.imports.clone().unwrap_or_else(PythonModule::built_in),
            store_code: config.store_code.unwrap_or_default(),
            warm: config.warm.unwrap_or(CodeSettings::DEFAULT_WARM),
            preload: config.preload.clone(),
            languages,
            project_languages: from_project.clone(),
        }
    }

    pub(super) fn to_config(&self) -> CodeConfig {
        CodeConfig {
            block_imports: Some(self.block_imports),
            imports: Some(self.imports.clone()),
            store_code: Some(self.store_code),
            warm: Some(self.warm),
            preload: self.preload.clone(),
            languages: self.languages.clone(),
        }
    }

    /// Returns the modules that interpreters import while they wait, with spaces between.
    ///
    /// A module with a `?` at the end need not be installed.
    pub fn preload_line(&self) -> String {
        match &self.preload {
            None => "json re numpy? pandas?".to_owned(),
            Some(modules) => {
                modules.iter().map(PythonModule::to_string).collect::<Vec<_>>().join(" ")
            }
        }
    }

    /// Returns the names of the languages whose suffix the file name has.
    pub fn languages_of(&self, path: &Path) -> Vec<&str> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let ends = |language: &Language| {
            name.strip_suffix(&language.suffix).is_some_and(|rest| !rest.is_empty())
        };
        self.languages
            .iter()
            .filter(|(_, language)| ends(language))
            .map(|(name, _)| name.as_str())
            .collect()
    }
}

/// Action of the lint of imports on a listed module, from the least to the most strict.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum BlockImports {
    /// The lint does not run.
    #[default]
    Off,
    /// The code is run, and the result lists the imports that the lint found.
    Warn,
    /// Code with a listed import is not run.
    Block,
}

impl BlockImports {
    const ALL: [BlockImports; 3] = [BlockImports::Off, BlockImports::Warn, BlockImports::Block];

    /// Returns the action for a setting that is only on or off: `Block` for on, `Off` for off.
    pub(super) const fn from_switch(on: bool) -> BlockImports {
        if on { BlockImports::Block } else { BlockImports::Off }
    }
}

impl fmt::Display for BlockImports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BlockImports::Off => "off",
            BlockImports::Warn => "warn",
            BlockImports::Block => "block",
        })
    }
}

/// Error for a text that is not the name of a [`BlockImports`] variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown choice `{0}`: it is one of off, warn, block")]
pub struct UnknownBlockImports(String);

impl FromStr for BlockImports {
    type Err = UnknownBlockImports;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = BlockImports::ALL.into_iter().find(|known| known.to_string() == text);
        known.ok_or_else(|| UnknownBlockImports(text.to_owned()))
    }
}

/// Name of a Python module, such as `os` or `os.path`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(rename = "Module")]
pub struct PythonModule(#[schemars(with = "String")] String);

impl PythonModule {
    /// Default of `code.imports`: the modules that the lint looks for.
    const BUILT_IN: [&'static str; 8] =
        ["os", "subprocess", "shutil", "socket", "ctypes", "multiprocessing", "pty", "signal"];

    pub(super) fn built_in() -> Vec<PythonModule> {
        PythonModule::BUILT_IN.map(|name| PythonModule(name.to_owned())).to_vec()
    }

    /// Returns `true` if `name` is this module or one of its submodules.
    pub fn holds(&self, name: &str) -> bool {
        name.strip_prefix(&self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

impl fmt::Display for PythonModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Error for a text that is not the name of a Python module.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is no name of a module: it is one or more identifiers with dots between",
    .0.escape_default()
)]
pub struct InvalidModuleName(String);

impl FromStr for PythonModule {
    type Err = InvalidModuleName;

    fn from_str(text: &str) -> Result<PythonModule, InvalidModuleName> {
        let is_identifier = |part: &str| {
            let begins =
                part.chars().next().is_some_and(|first| first.is_alphabetic() || first == '_');
            begins && part.chars().all(|character| character.is_alphanumeric() || character == '_')
        };
        if text.split('.').all(is_identifier) {
            Ok(PythonModule(text.to_owned()))
        } else {
            Err(InvalidModuleName(text.to_owned()))
        }
    }
}

impl TryFrom<String> for PythonModule {
    type Error = InvalidModuleName;

    fn try_from(text: String) -> Result<PythonModule, InvalidModuleName> {
        text.parse()
    }
}

impl From<PythonModule> for String {
    fn from(module: PythonModule) -> String {
        module.0
    }
}

/// Language of code. The code is written to a file, and a command gets the path of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Language {
    /// Program in the sandbox and its arguments; the path of the file is added at the end.
    #[serde(deserialize_with = "command")]
    command: Vec<String>,
    /// Suffix of the file's name, such as `.rb`. A file with the suffix is taken to be in this
    /// language. Code with the suffix `.py` is Python, which the lint of imports reads.
    #[serde(deserialize_with = "suffix")]
    suffix: String,
}

/// Reason why the definition of a language is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LanguageError {
    /// The name is empty, or has characters other than `a-z`, `0-9`, `-`, `_`, `+` and `#`.
    #[error(
        "`{}` is no name of a language: it is made of a-z, 0-9, `-`, `_`, `+` and `#`",
        .0.escape_default()
    )]
    Name(String),
    /// The command has no program, or has a word with NUL, which no program can receive.
    #[error("a language's command is a program and its arguments, and no word of it holds NUL")]
    Command,
    /// The suffix is not a dot with 1 to 16 ASCII letters or digits.
    #[error(
        "`{}` is no suffix: it is a dot and a few letters or digits, such as `.py`",
        .0.escape_default()
    )]
    Suffix(String),
}

impl Language {
    /// Suffix of Python files.
    const PYTHON_SUFFIX: &'static str = ".py";

    /// Creates a language whose code is put into a file with the name suffix `suffix`.
    ///
    /// `command` is the program and its arguments; the path of the file is added at the end.
    pub fn new(
        command: impl IntoIterator<Item: Into<String>>,
        suffix: impl Into<String>,
    ) -> Result<Language, LanguageError> {
        let command = check_command(command.into_iter().map(Into::into).collect())?;
        Ok(Language { command, suffix: check_suffix(suffix.into())? })
    }

    /// Returns the built-in languages, by name.
    pub(super) fn built_in() -> BTreeMap<String, Language> {
        let shipped = [
            ("python", "python3", Language::PYTHON_SUFFIX),
            ("bash", "bash", ".sh"),
            ("javascript", "node", ".js"),
        ];
        let language = |(name, program, suffix): (&str, &str, &str)| {
            (
                name.to_owned(),
                Language { command: vec![program.to_owned()], suffix: suffix.to_owned() },
            )
        };
        shipped.map(language).into()
    }

    /// Returns the program, which is never empty, and its arguments.
    pub fn command(&self) -> (&str, &[String]) {
        let (program, arguments) =
            self.command.split_first().expect("a command without a program is refused");
        (program, arguments)
    }

    /// Returns the suffix of the names of files in the language, such as `.py`.
    pub fn suffix(&self) -> &str {
        &self.suffix
    }

    /// Returns `true` if the language is Python, which the lint of imports can read.
    pub fn is_python(&self) -> bool {
        self.suffix == Language::PYTHON_SUFFIX
    }

    /// Checks that a text can be the name of a language.
    fn check_name(name: &str) -> Result<(), LanguageError> {
        let is_plain = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_+#".contains(&byte)
        };
        let is_sound = !name.is_empty() && name.bytes().all(is_plain);
        if is_sound { Ok(()) } else { Err(LanguageError::Name(name.to_owned())) }
    }
}

fn check_command(command: Vec<String>) -> Result<Vec<String>, LanguageError> {
    let has_program = command.first().is_some_and(|program| !program.is_empty());
    let is_sound = has_program && !command.iter().any(|word| word.contains('\0'));
    if is_sound { Ok(command) } else { Err(LanguageError::Command) }
}

fn check_suffix(suffix: String) -> Result<String, LanguageError> {
    const MAX_SUFFIX_LENGTH: usize = 16;
    let is_sound = suffix.strip_prefix('.').is_some_and(|rest| {
        !rest.is_empty()
            && rest.len() <= MAX_SUFFIX_LENGTH
            && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    if is_sound { Ok(suffix) } else { Err(LanguageError::Suffix(suffix)) }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} FILE{}", self.command.join(" "), self.suffix)
    }
}

fn languages<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, Language>, D::Error> {
    let languages = BTreeMap::<String, Language>::deserialize(deserializer)?;
    languages
        .keys()
        .try_for_each(|name| Language::check_name(name))
        .map_err(serde::de::Error::custom)?;
    Ok(languages)
}

fn command<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    check_command(Vec::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

fn suffix<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    check_suffix(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refuse(document: &str, message: &str) {
        assert_eq!(toml::from_str::<CodeConfig>(document).unwrap_err().message(), message);
    }

    #[test]
    fn languages_that_could_not_be_run_are_refused() {
        let wrong =
            "a language's command is a program and its arguments, and no word of it holds NUL";
        refuse("languages.r = { command = [], suffix = '.r' }", wrong);
        refuse("languages.r = { command = [''], suffix = '.r' }", wrong);
        refuse(r#"languages.r = { command = ["a\u0000"], suffix = '.r' }"#, wrong);
        for suffix in ["", ".", "r", ".a/b", ".a.b", "..", ".12345678901234567"] {
            let message = format!(
                "`{suffix}` is no suffix: it is a dot and a few letters or digits, such as `.py`"
            );
            refuse(&format!("languages.r = {{ command = ['r'], suffix = '{suffix}' }}"), &message);
        }
        for name in ["", "R", "a b", "../x"] {
            let message = format!(
                "`{name}` is no name of a language: it is made of a-z, 0-9, `-`, `_`, `+` and `#`"
            );
            refuse(&format!("languages.'{name}' = {{ command = ['r'], suffix = '.r' }}"), &message);
        }
        let config: CodeConfig =
            toml::from_str("languages.'c++' = { command = ['run', '-x'], suffix = '.cc' }")
                .unwrap();
        assert_eq!(config.languages["c++"].to_string(), "run -x FILE.cc");
        assert_eq!(Language::new(["run", "-x"], ".cc").as_ref(), Ok(&config.languages["c++"]));
        assert_eq!(Language::new([""; 0], ".cc"), Err(LanguageError::Command));
        assert_eq!(Language::new(["run"], "/../x"), Err(LanguageError::Suffix("/../x".to_owned())));
    }

    #[test]
    fn a_module_holds_itself_and_its_submodules() {
        let module: PythonModule = "os.path".parse().unwrap();
        assert!(module.holds("os.path") && module.holds("os.path.join"));
        assert!(!module.holds("os") && !module.holds("os.pathology") && !module.holds("os.pat"));
        for wrong in ["", ".", "os.", ".os", "1os", "o s", "os/path"] {
            assert!(wrong.parse::<PythonModule>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_lint_has_three_degrees() {
        assert!(BlockImports::Off < BlockImports::Warn && BlockImports::Warn < BlockImports::Block);
        for degree in BlockImports::ALL {
            assert_eq!(degree.to_string().parse(), Ok(degree));
        }
        refuse(
            "block_imports = 'maybe'",
            "unknown variant `maybe`, expected one of `off`, `warn`, `block`",
        );
        assert_eq!(
            "maybe".parse::<BlockImports>().unwrap_err().to_string(),
            "unknown choice `maybe`: it is one of off, warn, block"
        );
    }
}
