//! The programs that run cells: the command that starts each, and the text that it is sent.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ringfence_core::settings::Language;

use crate::session::{CommandInput, Exec};

/// A program in the sandbox that keeps an interpreter's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Harness {
    Python,
    Bash,
    Javascript,
}

impl Harness {
    /// Returns the harness for a language, if there is one.
    pub(super) fn for_language(language: &Language) -> Option<Harness> {
        match language.suffix() {
            ".py" => Some(Harness::Python),
            ".sh" => Some(Harness::Bash),
            ".js" => Some(Harness::Javascript),
            _ => None,
        }
    }

    /// Returns the command that starts the harness.
    pub(super) fn exec(self, language: &Language) -> Exec {
        let (program, arguments) = language.command();
        let exec = Exec::new(program).input(CommandInput::Piped).leaving_nothing();
        match self {
            Harness::Python => {
                exec.arguments(arguments).argument("-c").argument(include_str!("harness.py"))
            }
            Harness::Javascript => {
                exec.arguments(arguments).argument("-e").argument(include_str!("harness.js"))
            }
            Harness::Bash => {
                // Long options come first, bash(1).
                let own = ["--norc", "--noprofile", "--noediting"].map(str::to_owned).into_iter();
                exec.arguments(own.chain(arguments.iter().cloned())).argument("-i").argument("-s")
            }
        }
    }

    /// Returns the first text that the harness is sent. The mark is sent on its input only, because
    /// code that prints arguments or variables must not print the mark. Only the Python harness
    /// imports the modules in `preload`.
    pub(super) fn first_input(self, mark: &str, preload: &str) -> String {
        match self {
            Harness::Python => format!("{mark}\0{preload}\0"),
            Harness::Javascript => format!("{mark}\0"),
            Harness::Bash => format!("__ringfence_mark={mark}\n{}", include_str!("harness.sh")),
        }
    }

    /// Returns the text that sends a cell to the harness. Neither the code nor a variable may hold
    /// a NUL.
    pub(super) fn request(self, number: u64, code: &str, env: &BTreeMap<String, String>) -> String {
        let mut request = String::with_capacity(code.len() + 64);
        match self {
            Harness::Python | Harness::Javascript => {
                let _ = write!(request, "{number}\0{code}\0"); // a write to a `String` cannot fail
                request.extend(env.iter().map(|(name, value)| format!("{name}={value}\0")));
                request.push('\0');
            }
            Harness::Bash => {
                let _ = write!(request, "__ringfence_begin {number}; "); // as above
                request
                    .extend(env.iter().map(|(name, value)| format!("{name}={} ", quoted(value))));
                // The code reads /dev/null, because the shell's own input carries the cells. The
                // end is sent twice, because an interrupt may hit the first one.
                let end = format!("__ringfence_end {number}\n");
                request.extend(["eval ", &quoted(code), " </dev/null\n", &end, &end]);
            }
        }
        request
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_code_and_values_literally() {
        let env = [("A".to_owned(), "it's $x".to_owned())].into();
        assert_eq!(
            Harness::Bash.request(3, "echo 'a'\nb", &env),
            "__ringfence_begin 3; A='it'\\''s $x' eval 'echo '\\''a'\\''\nb' </dev/null\n\
             __ringfence_end 3\n__ringfence_end 3\n"
        );
    }

    #[test]
    fn a_request_to_python_has_fields_that_end_in_nul() {
        let env = [("A".to_owned(), "b=c".to_owned())].into();
        assert_eq!(Harness::Python.request(3, "x\ny", &env), "3\0x\ny\0A=b=c\0\0");
    }
}
