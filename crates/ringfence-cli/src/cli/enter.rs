//! The `ringfence enter` command, which opens a shell in a sandbox.

use std::process::ExitCode;

use clap::Args;
use ringfence::{AttachedStreams, Host};

use super::attach::{Named, block_on};
use super::exec::{attach, on_terminal, status};
use crate::report::Failure;

/// Script that starts the first available shell. Without a `.zshrc`, zsh would begin with
/// questions, so it starts with `-f` then.
const SHELL: &str = "command -v zsh >/dev/null 2>&1 && \
                     { [ -e \"${ZDOTDIR:-$HOME}/.zshrc\" ] && exec zsh; exec zsh -f; }\n\
                     command -v bash >/dev/null 2>&1 && exec bash\n\
                     exec sh";

/// Opens a shell in a sandbox that is up: zsh, bash or sh.
#[derive(Debug, Args)]
pub(crate) struct Enter {
    #[command(flatten)]
    sandbox: Named,
}

impl Enter {
    pub(crate) fn run(self, host: Host) -> Result<ExitCode, Failure> {
        if AttachedStreams::for_this_process().terminal().is_none() {
            return Err(Failure::usage(
                "a shell needs a terminal, and standard input or output is not a terminal",
                format!(
                    "run a command instead: ringfence exec {} -- sh -c 'COMMANDS'",
                    self.sandbox.name
                ),
            ));
        }
        block_on(async {
            let sandbox = self.sandbox.attach(&host).await?;
            let exec = on_terminal(ringfence::Exec::shell(SHELL), &host);
            let ended = attach(&sandbox, exec).await.map_err(|error| self.sandbox.failed(error))?;
            Ok(status(&ended).code().into())
        })
    }
}
