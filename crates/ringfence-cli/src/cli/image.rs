//! The `ringfence image` command, which builds container images.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use ringfence::{Backend, ContainerError, Host, chain, images};

use super::attach::block_on;
use crate::answer::print;
use crate::report::{Failure, pass_on};

/// Containerfile of the default image of `ringfence up --container`.
const CONTAINERFILE: &str = include_str!("Containerfile");

const EXAMPLES: &str = "\
Examples:
  ringfence image build
  ringfence image build --file Containerfile --tag localhost/mine:latest";

/// Builds images for containers.
#[derive(Debug, Args)]
pub(crate) struct ImageArguments {
    #[command(subcommand)]
    command: ImageCommand,
}

#[derive(Debug, Subcommand)]
enum ImageCommand {
    Build(Build),
}

/// Builds the default image of `ringfence up --container`, or another image, and prints its name.
///
/// The default image is made only from packages of Debian: zsh, git, python3 and openssh-server,
/// for a user `dev`. Only the Containerfile is sent to the engine.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct Build {
    /// Name of the image.
    #[arg(long, value_name = "NAME", default_value = images::OWN_IMAGE)]
    tag: String,
    /// Containerfile to build, instead of the default Containerfile.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Container engine that builds the image; by default podman, or else docker.
    #[arg(long, value_name = "BACKEND", value_parser = engine)]
    backend: Option<Backend>,
}

fn engine(text: &str) -> Result<Backend, &'static str> {
    images::engines()
        .find(|engine| engine.name() == text)
        .ok_or("the engine must be podman or docker")
}

impl ImageArguments {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        let ImageCommand::Build(build) = self.command;
        build.run(&host)
    }
}

impl Build {
    fn run(self, host: &Host) -> Result<ExitCode, Failure> {
        let text = match &self.file {
            Some(path) => &fs_err::read_to_string(path).map_err(|error| {
                Failure::usage(
                    format!("cannot read the Containerfile: {error}"),
                    "name a Containerfile with --file FILE, or leave the flag out",
                )
            })?,
            None => CONTAINERFILE,
        };
        block_on(self.build(host, text))?;
        print(&format!("{}\n", self.tag))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Builds the image with the named engine, or with the first engine that begins to build.
    async fn build(&self, host: &Host, text: &str) -> Result<(), Failure> {
        let engines =
            self.backend.map_or_else(|| images::engines().collect(), |backend| vec![backend]);
        let mut errors = Vec::new();
        for backend in engines {
            let mut has_begun = false;
            let mut print_line = |line: &str| {
                has_begun = true;
                pass_on(line);
            };
            match images::build(host, backend, text, &self.tag, &mut print_line).await {
                Ok(()) => return Ok(()),
                Err(error) if has_begun => return Err(failed(&[error])),
                Err(error) => errors.push(error),
            }
        }
        Err(failed(&errors))
    }
}

fn failed(errors: &[ContainerError]) -> Failure {
    let messages: Vec<String> = errors.iter().map(|error| chain(error)).collect();
    let hints = errors.iter().flat_map(|error| error.hints.clone());
    let fault = errors.last().map_or(ringfence::Fault::Host, |error| error.fault);
    Failure::with_fault(messages.join("; "), hints, fault)
}
