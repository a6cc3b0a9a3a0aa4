//! Snippets for the settings of programs that are MCP clients.

use std::collections::BTreeMap;

use serde::Serialize;

/// Name of the server in the settings.
const NAME: &str = "ringfence";
/// Placeholder for the project directory in the settings of editors.
const FOLDER: &str = "${workspaceFolder}";

/// Program that is an MCP client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Program {
    Claude,
    Codex,
    Cursor,
    Vscode,
}

/// Settings with which a program starts a server.
#[derive(Debug, Serialize)]
struct Server<'a> {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    command: &'a str,
    args: Vec<&'a str>,
}

impl Program {
    /// Returns the file that the snippet belongs into.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Program::Claude => ".mcp.json in the project's directory",
            Program::Codex => {
                "~/.codex/config.toml, or .codex/config.toml in the directory of a trusted project"
            }
            Program::Cursor => ".cursor/mcp.json in the project's directory, or ~/.cursor/mcp.json",
            Program::Vscode => ".vscode/mcp.json in the project's directory",
        }
    }

    /// Returns the settings that make the program start `command` with `flags`.
    pub(crate) fn snippet(self, command: &str, flags: &[String]) -> String {
        let mut args = vec!["mcp"];
        let says_where =
            flags.iter().any(|flag| flag.starts_with("-C") || flag.starts_with("--directory"));
        // The other programs start servers in the project directory.
        if matches!(self, Program::Cursor | Program::Vscode) && !says_where {
            args.extend(["--directory", FOLDER]);
        }
        args.extend(flags.iter().map(String::as_str));
        let (key, kind) = match self {
            Program::Claude | Program::Cursor => ("mcpServers", None),
            Program::Codex => ("mcp_servers", None),
            Program::Vscode => ("servers", Some("stdio")),
        };
        let settings =
            BTreeMap::from([(key, BTreeMap::from([(NAME, Server { kind, command, args })]))]);
        match self {
            Program::Codex => toml::to_string(&settings).expect("tables of text can be written"),
            _ => serde_json::to_string_pretty(&settings).expect("text can be written") + "\n",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(program: Program, flags: &[&str], expected: &str) {
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        assert_eq!(program.snippet("ringfence", &flags), expected);
    }

    #[test]
    fn each_program_gets_its_own_form() {
        let codex = "[mcp_servers.ringfence]\n\
                     command = \"ringfence\"\n\
                     args = [\"mcp\", \"--net\", \"open\"]\n";
        check(Program::Codex, &["--net", "open"], codex);
        let vscode = r#"{
  "servers": {
    "ringfence": {
      "type": "stdio",
      "command": "ringfence",
      "args": [
        "mcp",
        "--directory",
        "${workspaceFolder}"
      ]
    }
  }
}
"#;
        check(Program::Vscode, &[], vscode);
        let claude = r#"{
  "mcpServers": {
    "ringfence": {
      "command": "ringfence",
      "args": [
        "mcp"
      ]
    }
  }
}
"#;
        check(Program::Claude, &[], claude);
        let cursor = claude.replace("\"mcp\"\n", "\"mcp\",\n        \"-C\",\n        \"/p\"\n");
        check(Program::Cursor, &["-C", "/p"], &cursor);
    }
}
