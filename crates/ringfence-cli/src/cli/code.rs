//! The `ringfence code` command, which runs code in a sandbox.

use std::io::{Read, stdin};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use fs_err::File;
use ringfence::{BlockImports, Engine, ExecutionResult, Host, Records, Settings};

use super::flags::{ContainerFlags, PolicyFlags};
use super::run::{interruptible, warn_of_planted, warn_of_run_end};
use super::sync::warn_of_workspace;
use crate::answer::print_json;
use crate::report::{Failure, warn};

/// Maximum number of bytes of code that are read: one more than can be run, so that the library
/// reports code that is too long.
const MAX_CODE_BYTES: u64 = (16 << 20) + 1;
/// Name that stands for standard input.
const STDIN: &str = "-";

const EXAMPLES: &str = "\
Examples:
  ringfence code script.py
  echo 'print(6 * 7)' | ringfence code --language python -
  ringfence code --json --time 5s --memory 512M job.js";

/// Runs code behind a policy that is enforced or refused.
///
/// The code is written to a file in the sandbox, and the command of its language gets the path of
/// the file. The code starts in an empty directory of its own, which is removed when the code ends;
/// of the host, the code sees only the files that programs need. With --workspace, the code starts
/// in the workspace instead. The time limit is 30 seconds unless --time or the settings set another
/// limit.
///
/// Without --json, streams, signals and exit code are the code's own, and ringfence itself uses the
/// exit codes of `ringfence run`. Languages are entries of [code.languages] in the settings;
/// python, bash and javascript are built in.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Code {
    /// Language of the code; by default the language that the suffix of FILE belongs to.
    #[arg(short, long, value_name = "LANGUAGE")]
    language: Option<String>,
    /// Action for Python code that imports a module of code.imports: off, warn or block.
    ///
    /// The check is a lint: the check finds imports that are written plainly, and isolates nothing.
    #[arg(long, value_name = "WHAT")]
    block_imports: Option<BlockImports>,
    /// Captures the output and prints a result object.
    #[arg(long)]
    pub(super) json: bool,
    /// File with the code; `-` is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    container: ContainerFlags,
    // `policy` must be the last field, because its help heading also applies to the flags that
    // follow.
    #[command(flatten)]
    policy: PolicyFlags,
}

impl Code {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        // Read the file before `--directory` changes the working directory.
        let text = read(&self.file)?;
        let mut settings = self.container.settings(&self.policy, host)?;
        if let Some(degree) = self.block_imports {
            settings = settings.with_block_imports(degree);
        }
        let language = self.language(&settings)?;
        let engine = Engine::in_this_process(settings);
        let settings = engine.settings();
        if self.json {
            return interruptible(|interruption| {
                let result = engine.execute_code_captured(
                    &settings.policy,
                    &text,
                    &language,
                    None,
                    Some(interruption),
                )?;
                keep(settings, &language, &text, &result);
                warn_of_planted("the run", &result.meta.planted);
                result.meta.workspace.iter().for_each(|report| warn_of_workspace(report));
                print_json(&result)
            });
        }
        let attached = engine.execute_code_attached(&settings.policy, &text, &language, None)?;
        keep(settings, &language, &text, &attached.result);
        if attached.result.meta.not_run.is_some() {
            return Err(Failure::blocked(&attached.result));
        }
        warn_of_run_end(&attached.result);
        for import in &attached.result.meta.blocked_imports {
            warn(&format!("{import} (this is a lint, and isolates nothing)"));
        }
        Ok(attached.status.code().into())
    }

    fn language(&self, settings: &Settings) -> Result<String, Failure> {
        if let Some(language) = &self.language {
            return Ok(language.clone());
        }
        let all =
            || settings.code.languages.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let file = self.file.display();
        match settings.code.languages_of(&self.file)[..] {
            [language] => Ok(language.to_owned()),
            [] if self.file == Path::new(STDIN) => Err(Failure::usage(
                "cannot tell the language of standard input",
                format!("--language NAME, one of {}", all()),
            )),
            [] => Err(Failure::usage(
                format!("cannot tell the language of `{file}` from its name"),
                format!("--language NAME, one of {}", all()),
            )),
            ref several => Err(Failure::usage(
                format!("the name of `{file}` matches several languages"),
                format!("--language NAME, one of {}", several.join(", ")),
            )),
        }
    }
}

/// Reads code, up to [`MAX_CODE_BYTES`] bytes.
fn read(path: &Path) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let (place, read) = if path == Path::new(STDIN) {
        let read = stdin().lock().take(MAX_CODE_BYTES).read_to_end(&mut bytes);
        (
            "standard input".to_owned(),
            read.map_err(|error| format!("failed to read standard input: {error}")),
        )
    } else {
        let read =
            File::open(path).and_then(|file| file.take(MAX_CODE_BYTES).read_to_end(&mut bytes));
        (format!("`{}`", path.display()), read.map_err(|error| error.to_string()))
    };
    let unreadable = |why: String| {
        let hint = "name a file of UTF-8 text, or `-` for standard input";
        Failure::usage(format!("cannot read the code: {why}"), hint)
    };
    let length = read.map_err(unreadable)? as u64;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        // The limit may have cut the text within a character. The text is too long in any case.
        Err(error) if length == MAX_CODE_BYTES => {
            Ok(String::from_utf8_lossy(error.as_bytes()).into_owned())
        }
        Err(error) => Err(unreadable(format!("{place} is not UTF-8 text: {error}"))),
    }
}

/// Keeps a record of the run. If the record cannot be written, only warns, because the code has
/// already run.
fn keep(settings: &Settings, language: &str, code: &str, result: &ExecutionResult) {
    if let Err(error) = Records::keep_code(settings, language, code, result) {
        warn(&format!("cannot keep a record: {}; {}", ringfence::chain(&error), error.hint()));
    }
}
