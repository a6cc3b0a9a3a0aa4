//! Parser for git's configuration files (git-config(1), "Syntax"). The parser is more lenient than
//! git: it skips a line that git would refuse, so that an error does not hide the lines after it.

/// One variable of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigVariable {
    /// Name of the section, in lower case.
    pub(super) section: String,
    pub(super) subsection: Option<Vec<u8>>,
    /// Name of the variable, in lower case.
    pub(super) key: String,
    pub(super) value: Vec<u8>,
    /// `true` if the variable is in a file that another file includes.
    pub(super) is_included: bool,
}

/// Parses a configuration file.
pub(super) fn parse_config(bytes: &[u8]) -> Vec<ConfigVariable> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut parser =
        ConfigParser { rest: bytes, section: String::new(), subsection: None, found: Vec::new() };
    while !parser.rest.is_empty() {
        parser.parse_line();
    }
    parser.found
}

struct ConfigParser<'a> {
    rest: &'a [u8],
    section: String,
    subsection: Option<Vec<u8>>,
    found: Vec<ConfigVariable>,
}

impl ConfigParser<'_> {
    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | 0x0b | 0x0c)) {
            self.rest = &self.rest[1..];
        }
    }

    fn skip_line(&mut self) {
        while !matches!(self.next(), None | Some(b'\n')) {}
    }

    fn parse_line(&mut self) {
        self.skip_blanks();
        match self.peek() {
            None => {}
            Some(b'\n') => drop(self.next()),
            Some(b'#' | b';') => self.skip_line(),
            // A variable may follow on the same line.
            Some(b'[') => self.parse_section(),
            Some(byte) if byte.is_ascii_alphabetic() => self.parse_variable(),
            Some(_) => self.skip_line(),
        }
    }

    fn parse_section(&mut self) {
        self.next();
        let mut name = Vec::new();
        let mut subsection = None;
        loop {
            match self.peek() {
                None | Some(b'\n') => return,
                Some(b']') => break,
                Some(b'"') => {
                    self.next();
                    subsection = Some(self.parse_quoted_name());
                }
                Some(byte) => {
                    name.push(byte);
                    self.next();
                }
            }
        }
        self.next();
        let name = String::from_utf8_lossy(name.trim_ascii()).to_lowercase();
        // `[section.subsection]` is an old form, in which case does not matter.
        match (name.split_once('.'), &subsection) {
            (Some((section, old)), None) => {
                subsection = Some(old.as_bytes().to_vec());
                self.section = section.to_owned();
            }
            _ => self.section = name,
        }
        self.subsection = subsection;
    }

    fn parse_quoted_name(&mut self) -> Vec<u8> {
        let mut name = Vec::new();
        loop {
            match self.peek() {
                None | Some(b'\n') => return name,
                Some(b'"') => {
                    self.next();
                    return name;
                }
                Some(b'\\') => {
                    self.next();
                    name.extend(self.next());
                }
                Some(byte) => {
                    name.push(byte);
                    self.next();
                }
            }
        }
    }

    fn parse_variable(&mut self) {
        let mut key = String::new();
        while let Some(byte) =
            self.peek().filter(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
        {
            key.push(byte.to_ascii_lowercase().into());
            self.next();
        }
        self.skip_blanks();
        let value = match self.peek() {
            Some(b'=') => {
                self.next();
                self.parse_value()
            }
            Some(b'\n' | b'#' | b';') | None => {
                self.skip_line();
                b"true".to_vec()
            }
            Some(_) => return self.skip_line(),
        };
        let (section, subsection) = (self.section.clone(), self.subsection.clone());
        self.found.push(ConfigVariable { section, subsection, key, value, is_included: false });
    }

    fn parse_value(&mut self) -> Vec<u8> {
        self.skip_blanks();
        let mut value = Vec::new();
        let mut is_quoted = false;
        // Trailing blanks are dropped unless they are quoted.
        let mut kept = 0;
        while let Some(byte) = self.next() {
            match byte {
                b'\n' => break,
                b'\r' if self.peek() == Some(b'\n') => continue,
                b'"' => {
                    is_quoted = !is_quoted;
                    kept = value.len();
                    continue;
                }
                b'\\' => match self.next() {
                    Some(b'\n') => continue,
                    Some(b'\r') if self.peek() == Some(b'\n') => {
                        self.next();
                        continue;
                    }
                    Some(b'n') => value.push(b'\n'),
                    Some(b't') => value.push(b'\t'),
                    Some(b'b') => value.push(8),
                    Some(other) => value.push(other),
                    None => break,
                },
                b'#' | b';' if !is_quoted => {
                    self.skip_line();
                    break;
                }
                _ => {
                    value.push(byte);
                    if !is_quoted && byte.is_ascii_whitespace() {
                        continue;
                    }
                }
            }
            kept = value.len();
        }
        value.truncate(kept);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(config: &str, expected: &[&str]) {
        let show = |variable: &ConfigVariable| {
            let subsection =
                variable.subsection.as_deref().map(|name| format!("({})", name.escape_ascii()));
            let value = variable.value.escape_ascii();
            format!(
                "{}{}.{}={value}",
                variable.section,
                subsection.unwrap_or_default(),
                variable.key
            )
        };
        assert_eq!(
            parse_config(config.as_bytes()).iter().map(show).collect::<Vec<_>>(),
            expected,
            "{config:?}"
        );
    }

    #[test]
    fn variables_are_read_in_every_form_that_git_takes() {
        check(
            "[core]\n\tbare = false\n\thooksPath = ./tools/hooks # ours\n",
            &["core.bare=false", "core.hookspath=./tools/hooks"],
        );
        check("[Core] HOOKSPATH = \"with space \"  ; x", &["core.hookspath=with space "]);
        check("[core]\r\n\tpager = less\r\n", &["core.pager=less"]);
        check("\u{feff}[a]b=c", &["a.b=c"]);
        check("[a]\nb", &["a.b=true"]);
        check("[a]\nb=\n", &["a.b="]);
        check("[a]\nb = one \\\n  two\n", &["a.b=one   two"]);
        check("[a]\nb = \"\\\"x\\\"\" y\\tz\n", &["a.b=\\\"x\\\" y\\tz"]);
        check("[a \"B.c]d\"]\nx=1\n[a.B]\nx=2\n", &["a(B.c]d).x=1", "a(b).x=2"]);
        check("[includeIf \"gitdir:[x]\"]\n\tpath = more\n", &["includeif(gitdir:[x]).path=more"]);
    }

    #[test]
    fn a_line_that_git_refuses_hides_no_other_line() {
        check("[a\nb=1\n[c]\n=x\n1=2\nd e\nf=3\n", &[".b=1", "c.f=3"]);
        check("[a]\nb = \"never closed\nc = 1\n", &["a.b=never closed", "a.c=1"]);
    }
}
