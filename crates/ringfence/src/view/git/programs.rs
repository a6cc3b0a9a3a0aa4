//! Settings of git that make it run a program, and the files of a work tree that such a setting may
//! name.

use super::config::ConfigVariable;

/// Effect of a setting on what git executes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SettingEffect {
    /// Git reads more configuration from the named file.
    Include,
    /// Git runs programs from the named directory.
    ProgramDirectory,
    /// The value is a command, for a shell or with arguments.
    Command,
    /// The value may name another repository on this host, with its own configuration and hooks.
    Repository,
    None,
}

/// Suffixes of keys that hold a command in any section.
const COMMAND_SUFFIXES: [&str; 12] = [
    "command", "cmd", "program", "helper", "driver", "textconv", "editor", "pager", "hook",
    "askpass", "filter", "monitor",
];

/// Sections and keys that hold a command (git-config(1)).
const COMMANDS: [(&str, &str); 22] = [
    ("core", "gitproxy"),
    ("diff", "external"),
    ("filter", "clean"),
    ("filter", "smudge"),
    ("filter", "process"),
    ("lfs", "clean"),
    ("lfs", "smudge"),
    ("lfs", "path"),
    ("mergetool", "path"),
    ("difftool", "path"),
    ("browser", "path"),
    ("man", "path"),
    ("remote", "uploadpack"),
    ("remote", "receivepack"),
    ("remote", "vcs"),
    ("submodule", "update"),
    ("sendemail", "smtpserver"),
    ("imap", "tunnel"),
    ("instaweb", "httpd"),
    ("uploadpack", "packobjectshook"),
    ("gc", "recentobjectshook"),
    ("gpg", "defaultkeycommand"),
];

/// Returns the effect of a setting on what git executes.
pub(super) fn setting_effect(variable: &ConfigVariable) -> SettingEffect {
    let ConfigVariable { section, key, .. } = variable;
    match (section.as_str(), key.as_str()) {
        ("include" | "includeif", "path") => SettingEffect::Include,
        ("core", "hookspath") | ("init", "templatedir") => SettingEffect::ProgramDirectory,
        ("alias" | "pager", _) => SettingEffect::Command,
        ("remote" | "submodule", "url" | "pushurl") if !variable.value.starts_with(b"ext::") => {
            SettingEffect::Repository
        }
        ("remote" | "submodule", "url" | "pushurl") => SettingEffect::Command,
        pair if COMMANDS.contains(&pair) => SettingEffect::Command,
        (_, key) if COMMAND_SUFFIXES.iter().any(|suffix| key.ends_with(suffix)) => {
            SettingEffect::Command
        }
        _ if variable.value.starts_with(b"!") => SettingEffect::Command,
        _ => SettingEffect::None,
    }
}

/// Programs that take the name of a script, except Python and Node.js.
const INTERPRETERS: [&str; 13] = [
    "sh", "bash", "dash", "zsh", "ksh", "fish", "perl", "ruby", "php", "lua", "make", "source", ".",
];

/// Variables of the caller's environment that hold a command for git to run (git(1), "Environment
/// Variables").
pub(super) const COMMAND_VARIABLES: [&str; 12] = [
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_ASKPASS",
    "SSH_ASKPASS",
    "GIT_EDITOR",
    "GIT_SEQUENCE_EDITOR",
    "VISUAL",
    "EDITOR",
    "GIT_PAGER",
    "PAGER",
    "GIT_EXTERNAL_DIFF",
    "GIT_PROXY_COMMAND",
];

/// Part of a command that may be the path of a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CommandWord {
    pub(super) text: Vec<u8>,
    /// `true` if this is the first word of the command and has no slash. Such a word is looked up
    /// on `PATH`, not in the work tree.
    pub(super) is_program: bool,
}

/// Returns the words of a command that may be paths. The command is split as a shell would do, and
/// once more at every character that has a meaning for a shell or in an option, because a command
/// can contain another one in quotes.
pub(super) fn split_command(command: &[u8]) -> Vec<CommandWord> {
    let command = command.trim_ascii();
    let command = command.strip_prefix(b"!").unwrap_or(command);
    let command = command.strip_prefix(b"ext::").unwrap_or(command);
    let mut words: Vec<Vec<u8>> = vec![command.to_vec()];
    words.extend(split_quoted(command));
    let is_separator =
        |byte: &u8| byte.is_ascii_whitespace() || b"'\"`$(){};|&<>=,:!*?\\".contains(byte);
    words.extend(command.split(is_separator).map(<[u8]>::to_vec));
    // Options with an attached path, such as `awk -ftools/x.awk` or `make -Ctools`.
    let attached = words.iter().filter(|word| word.len() > 2 && word[0] == b'-' && word[1] != b'-');
    let attached: Vec<Vec<u8>> = attached.map(|word| word[2..].to_vec()).collect();
    words.extend(attached);
    // `python3 -m tools.lint` and `python3 -mtools.lint` run a module of the work tree.
    let mut plain = command.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    while let Some(option) = plain.by_ref().find(|word| word.starts_with(b"-m")) {
        let module = if option == b"-m" { plain.next() } else { Some(&option[2..]) };
        let Some(module) = module else { break };
        let path: Vec<u8> =
            module.iter().map(|byte| if *byte == b'.' { b'/' } else { *byte }).collect();
        words.extend(
            [".py", "/__main__.py", "/__init__.py"].map(|end| [&path, end.as_bytes()].concat()),
        );
    }
    // The rest of a word after a variable that may hold the path of the work tree, as in
    // `$PWD/tools/run`.
    for variable in command.split(|byte| *byte == b'$').skip(1) {
        let word =
            variable.split(|byte| byte.is_ascii_whitespace() || b"'\";|&<>".contains(byte)).next();
        let rest =
            word.and_then(|word| Some(&word[word.iter().position(|byte| *byte == b'/')? + 1..]));
        words.extend(rest.map(<[u8]>::to_vec));
    }
    let first = split_quoted(command).into_iter().next().unwrap_or_default();
    let mut found: Vec<CommandWord> = words
        .into_iter()
        .filter(|word| !word.is_empty() && !word.starts_with(b"-") && !word.contains(&0))
        .filter(|word| !word.iter().all(|byte| *byte == b'.' || *byte == b'/'))
        .map(|text| CommandWord { is_program: text == first && !text.contains(&b'/'), text })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Returns the words of a command that contain `*`, `?` or `[`.
pub(super) fn globs_of_command(command: &[u8]) -> Vec<String> {
    let words =
        command.split(|byte| byte.is_ascii_whitespace() || b"'\"`$(){};|&<>=!".contains(byte));
    let globs = words.filter(|word| word.iter().any(|byte| b"*?[".contains(byte)));
    globs.filter_map(|word| String::from_utf8(word.to_vec()).ok()).collect()
}

/// Tells whether a command starts Python. Python imports modules first from the directory of the
/// script, or from the working directory if it is given a module or code.
pub(super) fn starts_python(command: &[u8]) -> bool {
    starts(command, |name| name.starts_with(b"python") || name.starts_with(b"pypy"))
}

/// Tells whether a command starts Node.js or a similar program, which finds a script without its
/// file name extension.
pub(super) fn starts_node(command: &[u8]) -> bool {
    starts(command, |name| {
        matches!(name, b"node" | b"nodejs" | b"bun" | b"deno" | b"tsx" | b"ts-node")
    })
}

/// Tells whether a command starts a program that takes the name of a script, as in `sh clean`.
pub(super) fn starts_interpreter(command: &[u8]) -> bool {
    let is_interpreter = |name: &[u8]| INTERPRETERS.iter().any(|known| known.as_bytes() == name);
    starts(command, is_interpreter) || starts_python(command) || starts_node(command)
}

fn starts(command: &[u8], is_program: impl Fn(&[u8]) -> bool) -> bool {
    let mut words =
        command.split(|byte| byte.is_ascii_whitespace() || b"'\"`$(){};|&<>=!".contains(byte));
    words.any(|word| is_program(word.rsplit(|byte| *byte == b'/').next().unwrap_or(word)))
}

/// Tells whether a command gives Python a module (`-m`) or code (`-c`, or on its standard input).
pub(super) fn imports_from_working_directory(command: &[u8]) -> bool {
    let words: Vec<&[u8]> = command.split(u8::is_ascii_whitespace).collect();
    let is_short_option = |word: &[u8]| word.starts_with(b"-") && !word.starts_with(b"--");
    let gives_code = |word: &&[u8]| {
        is_short_option(word) && (word.len() == 1 || word.iter().any(|byte| b"mc".contains(byte)))
    };
    starts_python(command)
        && (words.iter().any(gives_code) || command.contains(&b'<') || command.contains(&b'|'))
}

/// Replaces `$NAME`, `${NAME}` and `${NAME:-other}` in a command by the value of the variable, if
/// it is known.
pub(super) fn replace_variables<'v>(
    command: &[u8],
    value_of: impl Fn(&[u8]) -> Option<&'v [u8]>,
) -> Vec<u8> {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let mut replaced = Vec::new();
    let mut rest = command;
    while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
        replaced.extend(&rest[..at]);
        let variable = &rest[at + 1..];
        let is_braced = variable.starts_with(b"{");
        let variable = variable.strip_prefix(b"{").unwrap_or(variable);
        let name_length = variable.iter().position(|byte| !is_name(byte)).unwrap_or(variable.len());
        let after = &variable[name_length..];
        let end = if is_braced {
            after.iter().position(|byte| *byte == b'}').map(|end| end + 1)
        } else {
            Some(0)
        };
        match (value_of(&variable[..name_length]), end) {
            (Some(value), Some(end)) => {
                replaced.extend(value);
                rest = &after[end..];
            }
            _ => {
                replaced.push(b'$');
                rest = &rest[at + 1..];
            }
        }
    }
    replaced.extend(rest);
    replaced
}

fn split_quoted(command: &[u8]) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut quote = None;
    let mut bytes = command.iter().copied();
    while let Some(byte) = bytes.next() {
        match (quote, byte) {
            (Some(open), _) if byte == open => quote = None,
            (None, b'\'' | b'"') => {
                quote = Some(byte);
                word.get_or_insert_default();
            }
            (None | Some(b'"'), b'\\') => word.get_or_insert_default().extend(bytes.next()),
            (None, _) if byte.is_ascii_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::super::config::parse_config;
    use super::*;

    #[track_caller]
    fn check_words(command: &str, expected: &[&str]) {
        let words = split_command(command.as_bytes());
        let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(&word.text)).collect();
        for word in expected {
            assert!(words.iter().any(|found| found == word), "`{word}` is not in {words:?}");
        }
    }

    #[test]
    fn every_way_to_name_a_script_is_found() {
        check_words("tools/clean.sh %f", &["tools/clean.sh"]);
        check_words("!sh -c 'tools/st \"$1\"' -", &["tools/st"]);
        check_words("'my tools/clean it' %f", &["my tools/clean it"]);
        check_words("my\\ tools/clean", &["my tools/clean"]);
        check_words("python3 --config=conf/x.toml lint.py", &["conf/x.toml", "lint.py"]);
        check_words("\"$(git rev-parse --show-toplevel)/tools/x\"", &["/tools/x"]);
        check_words("python3 -u -m tools.lint %f", &["tools/lint.py", "tools/lint/__main__.py"]);
        check_words("python3 -mtools.lint", &["tools/lint.py"]);
        check_words("awk -ftools/x.awk %f", &["tools/x.awk"]);
        check_words("$PWD/tools/x %f", &["tools/x"]);
        check_words("sh -c '\"${TOP:-.}/tools/x\" a'", &["tools/x"]);
        check_words("env PATH=bin:/usr/bin thing", &["bin", "thing"]);
        check_words("a;b&&c|d", &["b", "c", "d"]);
        check_words("ext::sh -c script% S", &["script%"]);
    }

    #[test]
    fn variables_are_replaced_where_their_values_are_known() {
        let check = |command: &str, expected: &str| {
            let value_of = |name: &[u8]| (name == b"HOME").then_some(&b"/home/ada"[..]);
            let replaced = replace_variables(command.as_bytes(), value_of);
            assert_eq!(String::from_utf8_lossy(&replaced), expected);
        };
        check("\"$HOME/x\" ${HOME}y", "\"/home/ada/x\" /home/aday");
        check("${HOME:-/tmp}/x $HOMES ${OTHER}/y $", "/home/ada/x $HOMES ${OTHER}/y $");
        check("${HOME", "${HOME");
    }

    #[test]
    fn a_command_that_has_python_import_from_the_working_directory_is_known() {
        for command in [
            "python3 -m json.tool",
            "/usr/bin/python3.11 -Bc 'import x'",
            "python3 - < x",
            "pypy3 -mx",
        ] {
            assert!(imports_from_working_directory(command.as_bytes()), "{command}");
        }
        for command in ["python3 tools/x.py --mode c", "sh -c tools/x", "tools/python-like -v"] {
            assert!(!imports_from_working_directory(command.as_bytes()), "{command}");
        }
    }

    #[test]
    fn only_a_program_without_a_slash_is_looked_for_on_the_path() {
        let words = split_command(b"clean --file rules");
        let is_program =
            |text: &[u8]| words.iter().find(|word| word.text == text).unwrap().is_program;
        assert!(is_program(b"clean") && !is_program(b"rules"));
        assert!(split_command(b"./clean").iter().all(|word| !word.is_program));
    }

    #[test]
    fn each_setting_has_the_effect_that_git_gives_it() {
        let check = |config: &str, expected: SettingEffect| {
            assert_eq!(setting_effect(&parse_config(config.as_bytes())[0]), expected, "{config}");
        };
        for config in [
            "[core]\nfsmonitor=x",
            "[core]\nsshCommand=x",
            "[core]\neditor=x",
            "[core]\npager=x",
            "[core]\naskPass=x",
            "[core]\ngitProxy=x",
            "[core]\nalternateRefsCommand=x",
            "[sequence]\neditor=x",
            "[diff]\nexternal=x",
            "[diff \"a\"]\ncommand=x",
            "[diff \"a\"]\ntextconv=x",
            "[filter \"a\"]\nclean=x",
            "[filter \"a\"]\nsmudge=x",
            "[filter \"a\"]\nprocess=x",
            "[merge \"a\"]\ndriver=x",
            "[gpg]\nprogram=x",
            "[gpg \"ssh\"]\nprogram=x",
            "[gpg \"ssh\"]\ndefaultKeyCommand=x",
            "[credential]\nhelper=x",
            "[credential \"https://h\"]\nhelper=x",
            "[alias]\nst=x",
            "[pager]\nlog=x",
            "[interactive]\ndiffFilter=x",
            "[trailer \"a\"]\ncommand=x",
            "[trailer \"a\"]\ncmd=x",
            "[remote \"o\"]\nuploadpack=x",
            "[remote \"o\"]\nreceivepack=x",
            "[remote \"o\"]\nvcs=x",
            "[remote \"o\"]\nurl=ext::x",
            "[submodule \"s\"]\nupdate=!x",
            "[uploadpack]\npackObjectsHook=x",
            "[difftool \"a\"]\ncmd=x",
            "[mergetool \"a\"]\npath=x",
            "[hook \"a\"]\ncommand=x",
            "[unheard]\nof=!x",
            "[sendemail]\ntocmd=x",
            "[tar \"x\"]\ncommand=x",
        ] {
            check(config, SettingEffect::Command);
        }
        check("[include]\npath=x", SettingEffect::Include);
        check("[includeIf \"onbranch:x\"]\npath=x", SettingEffect::Include);
        check("[core]\nhooksPath=x", SettingEffect::ProgramDirectory);
        check("[init]\ntemplateDir=x", SettingEffect::ProgramDirectory);
        check("[remote \"o\"]\nurl=../x", SettingEffect::Repository);
        check("[branch \"m\"]\nmerge=refs/heads/m", SettingEffect::None);
        check("[core]\nworktree=../x", SettingEffect::None);
    }
}
