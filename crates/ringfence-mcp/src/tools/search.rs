//! The tool that searches files. The search walks through directories of the sandbox by way of the
//! guest, and all of its costs are bounded.

use std::collections::VecDeque;
use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use globset::{GlobBuilder, GlobSet};
use ignore::Match as Verdict;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use regex::bytes::{Regex, RegexBuilder};
use ringfence::{EntryInfo, FileType, Session};
use rmcp::handler::server::tool::{Extension, schema_for_output};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use crate::client::Client;
use crate::tool_result::{Refusal, ToolResult, write_notes};
use crate::tools::files::decode_text;
use crate::tools::progress::Progress;

/// Maximum time of a search.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of files that a search reads.
const MOST_FILES: usize = 20_000;
/// Default for the number of lines that a search finds.
const DEFAULT_MATCHES: u32 = 100;
/// Maximum number of lines that a search finds.
const MOST_MATCHES: u32 = 1000;
/// Maximum size of a file that a search reads, in bytes.
const LONGEST_FILE: u64 = 2 << 20;
/// Maximum number of bytes of a line in the result.
const LONGEST_LINE: usize = 300;
/// Maximum number of bytes of a line that the pattern is matched against.
const LONGEST_SEARCHED: usize = 64 << 10;
/// Maximum size of the compiled pattern, in bytes. The time of one matching step can grow with this
/// size.
const LARGEST_PATTERN: usize = 128 << 10;
/// Maximum length of a glob, in bytes.
const LONGEST_GLOB: usize = 1024;
/// Maximum number of opening braces in a glob, because globset recurses for each level of braces.
const MOST_BRACES: usize = 32;
/// Maximum number of lines of a `.gitignore` file that are used.
const MOST_IGNORED: usize = 4096;
/// Maximum number of files that are read at once.
const PARALLEL_READS: usize = 8;
/// Directories of virtual files, whose content the kernel creates on each read.
const VIRTUAL_DIRECTORIES: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Parameters of the tool `search_files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SearchFiles {
    /// Regular expression that is matched against each line, such as `fn \w+`. Character classes
    /// match only ASCII characters; look-around and backreferences are not supported. Only the
    /// first 64 KiB of a line are searched.
    pattern: String,
    /// Path of the directory or file to search, absolute or relative to the workspace. The default
    /// is the workspace.
    path: Option<String>,
    /// Glob of at most 1024 bytes that selects files in the searched directory; the default is all
    /// files. A glob without `/`, such as `*.rs`, is matched against file names. A glob with `/`,
    /// such as `src/**/*.rs`, is matched against paths relative to the searched directory.
    glob: Option<String>,
    /// Treats the pattern as plain text instead of a regular expression. The default is false.
    #[serde(default)]
    literal: bool,
    /// Ignores the difference between upper and lower case of ASCII letters. The default is false.
    #[serde(default)]
    ignore_case: bool,
    /// Also searches the files that `.gitignore` files exclude. The default is false.
    #[serde(default)]
    include_ignored: bool,
    /// Maximum number of matching lines to return, 1 to 1000; the default is 100. A larger value
    /// counts as 1000.
    most: Option<u32>,
}

/// Lines that match a pattern.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct SearchResult {
    /// Path of the searched directory or file in the sandbox.
    path: String,
    /// Matching lines, with their files and line numbers.
    matches: Vec<Match>,
    /// Number of files that were searched.
    files: usize,
    /// True if the search ended before all files were searched, because a limit was reached.
    incomplete: bool,
    /// Files that were left out, limits that were reached, and suggestions for the next call.
    notes: Vec<String>,
}

/// Line that matches the pattern.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
struct Match {
    /// Path of the file, relative to the searched directory; the whole path if a single file was
    /// searched.
    path: String,
    /// Number of the line in the file, counted from 1.
    line: usize,
    /// Text of the line, cut after 300 bytes.
    text: String,
}

#[tool_router(router = search_tools, vis = "pub(crate)")]
impl Client {
    /// Searches the text files of a directory in the sandbox for lines that match a regular
    /// expression, and returns the matching lines with file names and line numbers. Files that
    /// .gitignore files exclude, .git directories, symbolic links, binary files, and files larger
    /// than 2 MiB are left out. A search ends after 20 seconds, after 20000 files, or at the
    /// maximum number of lines.
    #[tool(
        output_schema = schema_for_output::<SearchResult>(),
        annotations(title = "Search files", read_only_hint = true, open_world_hint = false)
    )]
    async fn search_files(
        &self,
        Parameters(parameters): Parameters<SearchFiles>,
        Extension(progress): Extension<Progress>,
    ) -> Result<ToolResult<SearchResult>, Refusal> {
        let query = SearchQuery::from_arguments(&parameters)?;
        let client_sandbox = self.client_sandbox().await?;
        let path = client_sandbox.resolve_path(parameters.path.as_deref().unwrap_or_default());
        let root = client_sandbox
            .sandbox
            .files()
            .stat(&path)
            .await
            .map_err(|error| client_sandbox.refusal(&error))?;
        let deadline = Instant::now() + SEARCH_TIMEOUT;
        let mut search =
            Search::new(client_sandbox.sandbox.session(), query, root.path.clone(), deadline);
        let done = timeout_at(deadline, search.run(root, &progress)).await;
        if done.is_err() {
            search.stop(format!("the search ended after {} s", SEARCH_TIMEOUT.as_secs()));
        }
        Ok(ToolResult(search.found(path)))
    }
}

/// Criteria of a search: the lines and the files that the client wants.
#[derive(Debug)]
struct SearchQuery {
    pattern: Regex,
    glob: Option<(GlobSet, GlobScope)>,
    include_ignored: bool,
    most: usize,
}

/// Text that a glob is matched against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GlobScope {
    Name,
    Path,
}

impl SearchQuery {
    fn from_arguments(parameters: &SearchFiles) -> Result<SearchQuery, Refusal> {
        let text = if parameters.literal {
            regex::escape(&parameters.pattern)
        } else {
            parameters.pattern.clone()
        };
        // Unicode is off, because its tables are larger than the rest of the automaton.
        let mut builder = RegexBuilder::new(&text);
        builder.unicode(false).case_insensitive(parameters.ignore_case).size_limit(LARGEST_PATTERN);
        let pattern = builder.build().map_err(|error| {
            Refusal::new(
                format!("the pattern is not a regular expression: {error}"),
                "correct the pattern, or set `literal` to true to search for plain text",
            )
        })?;
        let glob = parameters.glob.as_deref().map(|glob| {
            let by = if glob.contains('/') { GlobScope::Path } else { GlobScope::Name };
            let refuse = |why: String| {
                Refusal::new(
                    format!("the glob is not valid: {why}"),
                    "write a glob such as `*.rs` or `src/**/*.rs`",
                )
            };
            if !is_simple(glob) {
                return Err(refuse(format!(
                    "a glob has at most {LONGEST_GLOB} bytes and {MOST_BRACES} opening braces"
                )));
            }
            let glob = glob.trim_start_matches("./");
            let built =
                GlobBuilder::new(glob).literal_separator(true).empty_alternates(true).build();
            let set = built.and_then(|glob| GlobSet::builder().add(glob).build());
            Ok((set.map_err(|error| refuse(error.to_string()))?, by))
        });
        let most = parameters.most.unwrap_or(DEFAULT_MATCHES).clamp(1, MOST_MATCHES) as usize;
        Ok(SearchQuery {
            pattern,
            glob: glob.transpose()?,
            include_ignored: parameters.include_ignored,
            most,
        })
    }

    fn selects(&self, name: &str, relative: &str) -> bool {
        match &self.glob {
            None => true,
            Some((glob, GlobScope::Name)) => glob.is_match(name),
            Some((glob, GlobScope::Path)) => glob.is_match(relative),
        }
    }
}

/// Directory that is still to be searched, with the ignore rules of the directories above it.
#[derive(Debug)]
struct PendingDirectory {
    path: String,
    ignored: Option<Arc<IgnoreRules>>,
}

/// Ignore rules of the `.gitignore` of a directory, chained to the rules of the directories above.
#[derive(Debug)]
struct IgnoreRules {
    here: Gitignore,
    above: Option<Arc<IgnoreRules>>,
}

impl IgnoreRules {
    /// Returns whether the rules exclude an entry. The nearest rule that matches the entry decides.
    fn ignores(&self, path: &str, is_directory: bool) -> bool {
        match self.here.matched(path, is_directory) {
            Verdict::Ignore(_) => true,
            Verdict::Whitelist(_) => false,
            Verdict::None => {
                self.above.as_ref().is_some_and(|above| above.ignores(path, is_directory))
            }
        }
    }
}

/// Running search and its results so far.
#[derive(Debug)]
struct Search<'a> {
    session: &'a Session,
    query: SearchQuery,
    root: String,
    deadline: Instant,
    found: SearchResult,
    too_long: usize,
    unread: usize,
}

impl<'a> Search<'a> {
    fn new(
        session: &'a Session,
        query: SearchQuery,
        root: String,
        deadline: Instant,
    ) -> Search<'a> {
        Search {
            session,
            query,
            root,
            deadline,
            found: SearchResult::default(),
            too_long: 0,
            unread: 0,
        }
    }

    async fn run(&mut self, root: EntryInfo, progress: &Progress) {
        if root.kind != FileType::Directory {
            self.read_and_search(vec![root]).await;
            return;
        }
        let mut pending = VecDeque::from([PendingDirectory { path: root.path, ignored: None }]);
        while let Some(PendingDirectory { path, ignored }) = pending.pop_front() {
            progress.record_message(&format!(
                "{} files searched, {} lines found",
                self.found.files,
                self.found.matches.len()
            ));
            let Ok(mut entries) = self.session.files().list(&path, 1).await else {
                self.unread += 1;
                continue;
            };
            let ignored = self.ignored(&path, &entries, ignored).await;
            entries.retain(|entry| self.is_searched(entry, ignored.as_deref()));
            let (directories, files): (Vec<_>, Vec<_>) =
                entries.into_iter().partition(|entry| entry.kind == FileType::Directory);
            self.read_and_search(files).await;
            if self.found.incomplete {
                return;
            }
            let next = directories
                .into_iter()
                .map(|entry| PendingDirectory { path: entry.path, ignored: ignored.clone() });
            pending.extend(next);
        }
    }

    /// Returns the ignore rules that apply in a directory.
    async fn ignored(
        &self,
        path: &str,
        entries: &[EntryInfo],
        above: Option<Arc<IgnoreRules>>,
    ) -> Option<Arc<IgnoreRules>> {
        let is_there =
            entries.iter().any(|entry| entry.name == ".gitignore" && entry.kind == FileType::File);
        if self.query.include_ignored || !is_there {
            return above;
        }
        let Ok(bytes) =
            self.session.files().read(&format!("{path}/.gitignore"), LONGEST_FILE).await
        else {
            return above;
        };
        let path = path.to_owned();
        let built = tokio::task::spawn_blocking(move || {
            parse_gitignore(&path, &String::from_utf8_lossy(&bytes))
        })
        .await;
        match built.expect("reading lines does not panic") {
            Some(here) => Some(Arc::new(IgnoreRules { here, above })),
            None => above,
        }
    }

    fn is_searched(&self, entry: &EntryInfo, ignored: Option<&IgnoreRules>) -> bool {
        let is_directory = entry.kind == FileType::Directory;
        let is_left_out = ignored.is_some_and(|ignored| ignored.ignores(&entry.path, is_directory));
        if entry.is_symlink || is_left_out {
            return false;
        }
        match entry.kind {
            FileType::Directory => {
                entry.name != ".git" && !VIRTUAL_DIRECTORIES.contains(&entry.path.as_str())
            }
            FileType::File => self.query.selects(&entry.name, self.relative(&entry.path)),
            _ => false,
        }
    }

    fn relative<'p>(&self, path: &'p str) -> &'p str {
        let below = path
            .strip_prefix(self.root.trim_end_matches('/'))
            .and_then(|rest| rest.strip_prefix('/'));
        below.unwrap_or(path)
    }

    /// Searches files in their order. Reads up to [`PARALLEL_READS`] files at once.
    async fn read_and_search(&mut self, files: Vec<EntryInfo>) {
        let session = self.session;
        let (short, long): (Vec<_>, Vec<_>) = files
            .into_iter()
            .partition(|file| u64::try_from(file.size).unwrap_or(0) <= LONGEST_FILE);
        self.too_long += long.len();
        let contents = stream::iter(short).map(|file| async move {
            let bytes = session.files().read(&file.path, LONGEST_FILE).await;
            (file.path, bytes)
        });
        let mut contents = contents.buffered(PARALLEL_READS);
        while let Some((path, bytes)) = contents.next().await {
            match bytes {
                Ok(bytes) => self.search_lines(&path, bytes).await,
                Err(_) => self.unread += 1,
            }
            if self.found.incomplete {
                return;
            }
        }
    }

    /// Searches the lines of a file, unless the file is binary.
    async fn search_lines(&mut self, path: &str, bytes: Vec<u8>) {
        self.found.files += 1;
        if self.found.files >= MOST_FILES {
            self.stop(format!("the search ended after {MOST_FILES} files"));
        }
        let remaining = self.query.most - self.found.matches.len();
        let (pattern, deadline) = (self.query.pattern.clone(), self.deadline);
        // Run on a blocking thread, because a slow pattern on a large file can take long.
        let found = tokio::task::spawn_blocking(move || {
            matching_lines(&bytes, &pattern, remaining + 1, deadline)
        })
        .await;
        let found = found.expect("looking at lines does not panic");
        if found.len() > remaining {
            self.stop(format!(
                "the search ended after {} lines, and more lines match",
                self.query.most
            ));
        }
        let path = self.relative(path).to_owned();
        let matches = found.into_iter().take(remaining).map(|(line, text)| Match {
            path: path.clone(),
            line,
            text,
        });
        self.found.matches.extend(matches);
    }

    fn stop(&mut self, why: String) {
        if !self.found.incomplete {
            self.found.incomplete = true;
            self.found.notes.push(format!(
                "{why}; search a smaller directory, or use a glob or a narrower pattern"
            ));
        }
    }

    fn found(self, path: String) -> SearchResult {
        let mut found = SearchResult { path, ..self.found };
        if self.too_long > 0 {
            let note =
                format!("{} files larger than {LONGEST_FILE} bytes were left out", self.too_long);
            found.notes.push(format!("{note}; search these files with run_command and grep"));
        }
        if self.unread > 0 {
            found.notes.push(format!("{} files or directories could not be read", self.unread));
        }
        found
    }
}

/// Returns whether a glob is small enough to be compiled safely.
fn is_simple(glob: &str) -> bool {
    glob.len() <= LONGEST_GLOB && glob.bytes().filter(|byte| *byte == b'{').count() <= MOST_BRACES
}

/// Parses a `.gitignore` file. Code in the sandbox may have written the file, so its size is
/// bounded.
fn parse_gitignore(directory: &str, text: &str) -> Option<Gitignore> {
    let mut builder = GitignoreBuilder::new(directory);
    for line in text.lines().take(MOST_IGNORED).filter(|line| is_simple(line)) {
        let _ = builder.add_line(None, line); // git also continues after an invalid line
    }
    builder.build().ok()
}

/// Returns the first `most` lines that match, each with its number and with its text as the result
/// shows it.
fn matching_lines(
    bytes: &[u8],
    pattern: &Regex,
    most: usize,
    deadline: Instant,
) -> Vec<(usize, String)> {
    let lines = decode_text(bytes).into_iter().flat_map(str::lines).enumerate();
    let in_time = lines.take_while(|_| Instant::now() < deadline);
    let matching = in_time
        .filter(|(_, line)| pattern.is_match(&line.as_bytes()[..line.len().min(LONGEST_SEARCHED)]));
    let shown = matching.map(|(number, line)| {
        let end = line.floor_char_boundary(LONGEST_LINE);
        let text = if end < line.len() { format!("{}…", &line[..end]) } else { line.to_owned() };
        (number + 1, text)
    });
    shown.take(most).collect()
}

impl Display for SearchResult {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Match { path, line, text } in &self.matches {
            writeln!(formatter, "{path}:{line}: {text}")?;
        }
        let (lines, files) = (self.matches.len(), self.files);
        write!(formatter, "[{lines} lines found, {files} files searched in {}]", self.path)?;
        write_notes(formatter, &self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(pattern: &str) -> SearchFiles {
        serde_json::from_value(serde_json::json!({ "pattern": pattern })).unwrap()
    }

    #[test]
    fn a_pattern_is_understood_or_refused() {
        assert!(
            SearchQuery::from_arguments(&parameters(r"fn\s+\w+"))
                .unwrap()
                .pattern
                .is_match(b"fn main")
        );
        assert!(
            SearchQuery::from_arguments(&parameters("grün"))
                .unwrap()
                .pattern
                .is_match("ein grünes".as_bytes())
        );
        assert!(
            SearchQuery::from_arguments(&SearchFiles { literal: true, ..parameters("a.b(") })
                .unwrap()
                .pattern
                .is_match(b"a.b(")
        );
        let refusal = SearchQuery::from_arguments(&parameters("(")).unwrap_err().to_string();
        assert!(refusal.contains("not a regular expression"), "{refusal}");
        assert!(SearchQuery::from_arguments(&parameters(r"(\w{500}){500}")).is_err());
    }

    #[test]
    fn a_glob_is_of_names_or_of_paths() {
        let selects = |glob: &str, relative: &str| {
            let query = SearchQuery::from_arguments(&SearchFiles {
                glob: Some(glob.to_owned()),
                ..parameters("x")
            })
            .unwrap();
            query.selects(relative.rsplit('/').next().unwrap(), relative)
        };
        assert!(selects("*.rs", "src/a/b.rs"));
        assert!(!selects("*.rs", "src/a/b.py"));
        assert!(selects("src/**/*.rs", "src/a/b.rs"));
        assert!(!selects("src/*.rs", "src/a/b.rs"));
    }

    #[test]
    fn globs_that_nobody_would_write_harm_nobody() {
        let nested = |levels: usize| format!("{}a{}", "{".repeat(levels), "}".repeat(levels));
        let query = |glob: String| {
            SearchQuery::from_arguments(&SearchFiles { glob: Some(glob), ..parameters("x") })
        };
        assert!(query(nested(MOST_BRACES)).unwrap().selects("a", "a"));
        for wrong in [nested(300), nested(1_000_000), "x".repeat(LONGEST_GLOB + 1), "[".to_owned()]
        {
            let refusal = query(wrong).unwrap_err().to_string();
            assert!(refusal.contains("the glob is not valid"), "{refusal}");
        }
        let planted = format!("{}\n*.log\n", nested(1_000_000));
        assert!(parse_gitignore("/w", &planted).unwrap().matched("/w/a.log", false).is_ignore());
        assert_eq!(
            parse_gitignore("/w", &"x\n".repeat(MOST_IGNORED + 1)).unwrap().num_ignores(),
            MOST_IGNORED as u64
        );
    }

    #[test]
    fn lines_are_found_until_there_are_enough_or_the_time_is_over() {
        let pattern = SearchQuery::from_arguments(&parameters("a|b")).unwrap().pattern;
        let found = |text: &str, most, time| {
            matching_lines(text.as_bytes(), &pattern, most, Instant::now() + time)
        };
        let [hour, nothing] = [Duration::from_secs(3600), Duration::ZERO];
        assert_eq!(found("x\na\nb\na", 2, hour), [(2, "a".to_owned()), (3, "b".to_owned())]);
        assert_eq!(found("a", 1, nothing), []);
        assert_eq!(found(&format!("{}a", "x".repeat(LONGEST_SEARCHED)), 1, hour), []);
        assert_eq!(found("a\0", 1, hour), []);
    }

    #[test]
    fn the_nearest_that_speaks_of_a_file_decides_whether_it_is_left_out() {
        let gitignore = |path: &str, line: &str| {
            let mut builder = GitignoreBuilder::new(path);
            builder.add_line(None, line).unwrap();
            builder.build().unwrap()
        };
        let above = Arc::new(IgnoreRules { here: gitignore("/w", "*.log"), above: None });
        let below =
            IgnoreRules { here: gitignore("/w/keep", "!*.log"), above: Some(Arc::clone(&above)) };
        assert!(above.ignores("/w/a.log", false));
        assert!(above.ignores("/w/other/a.log", false));
        assert!(!below.ignores("/w/keep/a.log", false));
        assert!(!above.ignores("/w/a.txt", false));
    }
}
