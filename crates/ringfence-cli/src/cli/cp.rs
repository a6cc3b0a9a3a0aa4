//! The `ringfence cp` command, which copies files into a sandbox and out of it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use ringfence::{Code, ExitStatus, FileType, Host, Name, Sandbox, SessionError, TransferSummary};

use super::attach::{Named, block_on};
use crate::report::{Failure, warn};

const EXAMPLES: &str = "\
Examples:
  ringfence cp model.bin demo:data/
  ringfence cp demo:/tmp/report .
  echo hello | ringfence cp - demo:hello.txt
Write a local path that contains a colon as ./a:b.";

/// Copies files and directories into a sandbox or out of a sandbox.
///
/// Either SRC or DST is NAME:PATH, a path in the sandbox NAME; a relative PATH starts in the
/// workspace. If DST is an existing directory, the source is copied into that directory, as with
/// cp(1). `-` stands for standard input or output. File modes are kept.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Cp {
    /// Source of the copy: a path, NAME:PATH, or `-` for standard input.
    #[arg(value_name = "SRC", value_hint = clap::ValueHint::AnyPath)]
    from: OsString,
    /// Destination of the copy: a path, NAME:PATH, or `-` for standard output.
    #[arg(value_name = "DST", value_hint = clap::ValueHint::AnyPath)]
    to: OsString,
}

/// Source or destination of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    /// Path on the host.
    Here(PathBuf),
    /// Path in a sandbox.
    Inside { name: String, path: String },
    /// Standard input or standard output.
    Stream,
}

impl From<&OsStr> for End {
    fn from(word: &OsStr) -> End {
        if word == "-" {
            return End::Stream;
        }
        match word.to_str().and_then(|text| text.split_once(':')) {
            Some((name, path)) if Name::new(name).is_ok() => {
                End::Inside { name: name.to_owned(), path: path.to_owned() }
            }
            _ => End::Here(word.into()),
        }
    }
}

impl Cp {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let (from, to) = (End::from(self.from.as_os_str()), End::from(self.to.as_os_str()));
        block_on(async {
            let done = match (from, to) {
                (End::Inside { .. }, End::Inside { .. }) => {
                    return Err(Failure::usage(
                        "both paths name a sandbox, and one of them must be a path on this machine",
                        "copy in two steps, through a file on this machine; write a local path \
                         that contains a colon as ./a:b",
                    ));
                }
                (End::Inside { name, path }, to) => {
                    Copy::connect(name, &host).await?.outward(&path, &to).await?
                }
                (from, End::Inside { name, path }) => {
                    Copy::connect(name, &host).await?.inward(&from, &path).await?
                }
                _ => {
                    return Err(Failure::usage(
                        "neither path names a sandbox",
                        "ringfence cp SRC NAME:DST, or ringfence cp NAME:SRC DST; `ringfence ps` \
                         lists the names",
                    ));
                }
            };
            Ok(report_left_out(&done).code().into())
        })
    }
}

/// Copy with one sandbox.
struct Copy {
    sandbox: Sandbox,
    named: Named,
}

impl Copy {
    async fn connect(name: String, host: &Host) -> Result<Copy, Failure> {
        let named = Named { name };
        Ok(Copy { sandbox: named.attach(host).await?, named })
    }

    async fn inward(&self, from: &End, to: &str) -> Result<TransferSummary, Failure> {
        let files = self.sandbox.files();
        let destination = self.inside(to);
        let failed = |error| self.named.failed(error);
        let End::Here(from) = from else {
            let is_directory = self.kind(&destination).await? == Some(FileType::Directory);
            if is_directory || to.ends_with('/') {
                return Err(self.wrong(
                    to,
                    "the destination is a directory, and standard input has no file name",
                    "name a file in the directory",
                ));
            }
            files.write_from(&destination, &mut tokio::io::stdin()).await.map_err(failed)?;
            return Ok(TransferSummary::default());
        };
        let metadata = from.metadata().map_err(|error| {
            Failure::usage(
                format!("cannot read `{}`: {error}", from.display()),
                "name a file that exists",
            )
        })?;
        let destination = match self.kind(&destination).await? {
            Some(FileType::Directory) => join(&destination, from),
            Some(_) if metadata.is_dir() => {
                return Err(self.wrong(
                    to,
                    "the destination is a file, and the source is a directory",
                    "remove the file first",
                ));
            }
            None if to.ends_with('/') && !metadata.is_dir() => {
                let fix = format!(
                    "create the directory first: ringfence exec {} -- mkdir -p {to}",
                    self.named.name
                );
                return Err(self.wrong(to, "the directory does not exist", &fix));
            }
            _ => destination,
        };
        let bar = bar(metadata.is_file().then_some(metadata.len()));
        let done = files.upload(from, &destination, |bytes| bar.set_position(bytes)).await;
        bar.finish_and_clear();
        done.map_err(failed)
    }

    async fn outward(&self, from: &str, to: &End) -> Result<TransferSummary, Failure> {
        let files = self.sandbox.files();
        let source = self.inside(from);
        let failed = |error| self.named.failed(error);
        let End::Here(to) = to else {
            match files.read_to(&source, &mut tokio::io::stdout()).await {
                Err(SessionError::HostStream { source, .. })
                    if source.kind() == std::io::ErrorKind::BrokenPipe => {}
                done => drop(done.map_err(failed)?),
            }
            return Ok(TransferSummary::default());
        };
        let entry = files.stat(&source).await.map_err(failed)?;
        let is_directory = fs_err::metadata(to).is_ok_and(|metadata| metadata.is_dir());
        let ends_with_slash = to.as_os_str().as_encoded_bytes().ends_with(b"/");
        let destination = match is_directory {
            true => join_here(to, Path::new(&source)),
            false if ends_with_slash && entry.kind != FileType::Directory => {
                let fix = format!("create the directory first: mkdir -p {}", to.display());
                return Err(self.wrong(
                    &to.to_string_lossy(),
                    "the directory does not exist",
                    &fix,
                ));
            }
            false => to.clone(),
        };
        let length = (entry.kind == FileType::File).then(|| u64::try_from(entry.size).unwrap_or(0));
        let bar = bar(length);
        let done = files.download(&source, &destination, |bytes| bar.set_position(bytes)).await;
        bar.finish_and_clear();
        done.map_err(failed)
    }

    /// Returns the absolute form of a path in the sandbox.
    fn inside(&self, path: &str) -> String {
        if path.starts_with('~') {
            return path.to_owned();
        }
        self.sandbox.manifest().workspace_inside.join(path).to_string_lossy().into_owned()
    }

    /// Returns the type of the file at a path in the sandbox, or `None` if there is no file.
    async fn kind(&self, path: &str) -> Result<Option<FileType>, Failure> {
        match self.sandbox.files().stat(path).await {
            Ok(entry) => Ok(Some(entry.kind)),
            Err(error) if error.code() == Some(Code::NotFound) => Ok(None),
            Err(error) => Err(self.named.failed(error)),
        }
    }

    fn wrong(&self, path: &str, why: &str, fix: &str) -> Failure {
        Failure::usage(format!("cannot copy to `{path}`: {why}"), fix)
    }
}

/// Returns the destination of a copy into an existing directory: the source keeps its name there. A
/// source such as `DIR/.` has no name, so its contents go into the directory itself.
fn join(directory: &str, from: &Path) -> String {
    join_here(Path::new(directory), from).to_string_lossy().into_owned()
}

fn join_here(directory: &Path, from: &Path) -> PathBuf {
    let is_contents =
        from.as_os_str().as_encoded_bytes().ends_with(b"/.") || from == Path::new(".");
    match from.file_name().filter(|_| !is_contents) {
        Some(name) => directory.join(name),
        None => directory.to_path_buf(),
    }
}

/// Creates a progress bar, which is visible only on a terminal.
fn bar(length: Option<u64>) -> ProgressBar {
    let (bar, template) = match length {
        Some(length) => (
            ProgressBar::new(length),
            "{bar:40} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        ),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes}, {bytes_per_sec}"),
    };
    bar.with_style(ProgressStyle::with_template(template).expect("the template is fixed text"))
}

/// Warns about files that were not copied, and returns the exit status.
fn report_left_out(done: &TransferSummary) -> ExitStatus {
    for left_out in &done.left_out {
        warn(&format!("`{}` was not copied: {}", left_out.name, left_out.why));
    }
    let more = done.left_out_count.saturating_sub(done.left_out.len() as u64);
    if more > 0 {
        warn(&format!("{more} more entries were not copied"));
    }
    if done.left_out_count == 0 { ExitStatus::Code(0) } else { ExitStatus::Broken }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_before_a_colon_names_a_sandbox_if_it_is_a_valid_name() {
        let inside = |name: &str, path: &str| End::Inside { name: name.into(), path: path.into() };
        assert_eq!(End::from(OsStr::new("demo:a:b")), inside("demo", "a:b"));
        assert_eq!(End::from(OsStr::new("demo:")), inside("demo", ""));
        assert_eq!(End::from(OsStr::new("-")), End::Stream);
        for here in ["a", "./a:b", "/a:b", "C:b", ":b", "../a:b", "a/b:c"] {
            assert_eq!(End::from(OsStr::new(here)), End::Here(here.into()), "{here}");
        }
    }

    #[test]
    fn a_directory_takes_a_file_under_its_own_name() {
        assert_eq!(join("/w", Path::new("/a/b")), "/w/b");
        assert_eq!(join("/w", Path::new("b/")), "/w/b");
        assert_eq!(join("/w", Path::new("b/.")), "/w");
        assert_eq!(join("/w", Path::new(".")), "/w");
        assert_eq!(join("/w", Path::new("..")), "/w");
    }
}
