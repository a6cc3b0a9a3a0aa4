//! The tools for files. All of them go through the guest, which opens files with the rights of the
//! sandbox.

use std::fmt::{self, Display};
use std::path::Path;

use ringfence::{Code, EntryInfo, FileType, SessionError, chain};
use rmcp::handler::server::tool::schema_for_output;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::{tool, tool_router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::client::{Client, ClientSandbox};
use crate::tool_result::{Refusal, ToolResult, write_notes};

/// Maximum size of a file that a tool reads, to show or to change it, in bytes.
pub(crate) const LONGEST_FILE: u64 = 8 << 20;
/// Maximum length of a text that a tool writes, in bytes.
const LONGEST_WRITTEN: usize = 2 << 20;
/// Maximum number of bytes of a file that one call shows.
const LONGEST_SHOWN: usize = 64 << 10;
/// Maximum number of lines that one call shows, also the default.
const MOST_LINES: u32 = 2000;
/// Maximum number of directory entries that one call shows.
const MOST_ENTRIES: usize = 1000;
/// Maximum depth of a listing.
const MAX_DEPTH: u32 = 10;

/// Parameters of the tool `read_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadFile {
    /// Path of the file in the sandbox, absolute or relative to the workspace.
    path: String,
    /// Number of the first line to return, counted from 1. The default is 1.
    first_line: Option<u32>,
    /// Maximum number of lines to return, 1 to 2000; the default is 2000. A larger value counts as
    /// 2000.
    lines: Option<u32>,
}

/// Parameters of the tool `write_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteFile {
    /// Path of the file in the sandbox, absolute or relative to the workspace. Missing parent
    /// directories are created.
    path: String,
    /// Complete new content of the file, as UTF-8 text of at most 2 MiB.
    content: String,
}

/// Parameters of the tool `edit_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EditFile {
    /// Path of the file in the sandbox, absolute or relative to the workspace.
    path: String,
    /// Text to replace, exactly as in the file, with its spaces, tabs and line ends. The text must
    /// not be empty, and must occur exactly once in the file unless `replace_all` is true.
    old_text: String,
    /// Text that replaces `old_text`. An empty text deletes `old_text`.
    new_text: String,
    /// Replaces every occurrence of `old_text` in the file. The default is false.
    #[serde(default)]
    replace_all: bool,
}

/// Parameters of the tool `list_files`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListFiles {
    /// Path of the directory in the sandbox, absolute or relative to the workspace. The default is
    /// the workspace.
    path: Option<String>,
    /// Number of directory levels to list, 1 to 10. The default is 1, which lists only the entries
    /// of the directory itself. A larger value counts as 10.
    depth: Option<u32>,
}

/// Text of a file, or of a part of the file.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FileText {
    /// Path of the file in the sandbox.
    path: String,
    /// Text of the returned lines, at most 64 KiB; empty if the file is binary.
    content: String,
    /// Number of the first returned line, counted from 1.
    first_line: usize,
    /// Number of lines that are returned.
    lines: usize,
    /// Number of lines in the whole file; 0 if the file is binary.
    all_lines: usize,
    /// Size of the whole file in bytes.
    bytes: usize,
    /// True if the file is binary: the file contains a NUL byte, or is not UTF-8.
    binary: bool,
    /// Further facts about the file, and suggestions for the next call.
    notes: Vec<String>,
}

/// File that was written or edited.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FileChange {
    /// Path of the file in the sandbox.
    path: String,
    /// Size of the file after the change, in bytes.
    bytes: usize,
    /// True if the file did not exist before.
    created: bool,
    /// Number of replaced occurrences of the old text; 0 for `write_file`.
    replaced: usize,
}

/// Entries of a directory.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Listing {
    /// Path of the listed directory in the sandbox.
    path: String,
    /// Entries of the directory, at most 1000.
    entries: Vec<Entry>,
    /// Number of further entries that were found and are not returned.
    left_out: usize,
}

/// Entry of a directory, such as a file or another directory.
#[derive(Debug, Serialize, JsonSchema)]
struct Entry {
    /// Path of the entry, relative to the listed directory.
    path: String,
    /// Type of the entry.
    kind: EntryKind,
    /// Size of the entry in bytes, as the file system reports the size.
    size: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum EntryKind {
    File,
    Directory,
    Link,
    Other,
}

#[tool_router(router = file_tools, vis = "pub(crate)")]
impl Client {
    /// Reads a text file in the sandbox, and returns all lines or a range of lines. One call
    /// returns at most 2000 lines and 64 KiB; if lines are missing, a note names the line to
    /// continue with. A file larger than 8 MiB is refused. For a binary file, only the size is
    /// returned.
    #[tool(
        output_schema = schema_for_output::<FileText>(),
        annotations(title = "Read a file", read_only_hint = true, open_world_hint = false)
    )]
    async fn read_file(
        &self,
        Parameters(parameters): Parameters<ReadFile>,
    ) -> Result<ToolResult<FileText>, Refusal> {
        let client_sandbox = self.client_sandbox().await?;
        let path = client_sandbox.resolve_path(&parameters.path);
        let bytes = read(&client_sandbox, &path).await?;
        let first = parameters.first_line.unwrap_or(1).max(1) as usize;
        let limit = parameters.lines.unwrap_or(MOST_LINES).clamp(1, MOST_LINES) as usize;
        Ok(ToolResult(FileText::from_bytes(path, &bytes, first, limit)))
    }

    /// Writes a text file of at most 2 MiB in the sandbox, and returns its path and size. An
    /// existing file is overwritten, and missing parent directories are created.
    #[tool(
        output_schema = schema_for_output::<FileChange>(),
        annotations(
            title = "Write a file",
            destructive_hint = true,
            idempotent_hint = true,
            open_world_hint = false
        )
    )]
    async fn write_file(
        &self,
        Parameters(parameters): Parameters<WriteFile>,
    ) -> Result<ToolResult<FileChange>, Refusal> {
        let client_sandbox = self.client_sandbox().await?;
        let path = client_sandbox.resolve_path(&parameters.path);
        let _turn = client_sandbox.write_lock.lock().await;
        let created = match client_sandbox.sandbox.files().stat(&path).await {
            Ok(_) => false,
            Err(SessionError::Refused { code: Code::NotFound, .. }) => true,
            Err(error) => return Err(client_sandbox.refusal(&error)),
        };
        let bytes = write(&client_sandbox, &path, parameters.content).await?;
        Ok(ToolResult(FileChange { path, bytes, created, replaced: 0 }))
    }

    /// Replaces a piece of text in a file in the sandbox, and returns the number of replacements.
    /// The old text must occur exactly once in the file, unless replace_all is true. The edit is
    /// refused if the file is not UTF-8 text, or if the file would have more than 2 MiB after the
    /// edit.
    #[tool(
        output_schema = schema_for_output::<FileChange>(),
        annotations(title = "Edit a file", destructive_hint = true, open_world_hint = false)
    )]
    async fn edit_file(
        &self,
        Parameters(parameters): Parameters<EditFile>,
    ) -> Result<ToolResult<FileChange>, Refusal> {
        let client_sandbox = self.client_sandbox().await?;
        let path = client_sandbox.resolve_path(&parameters.path);
        let _turn = client_sandbox.write_lock.lock().await;
        let bytes = read(&client_sandbox, &path).await?;
        let text = String::from_utf8(bytes).map_err(|_| {
            Refusal::new(
                format!("`{path}` is not UTF-8 text"),
                "change the file with a program that run_command starts",
            )
        })?;
        let (text, replaced) = edited(&text, &parameters)?;
        let bytes = write(&client_sandbox, &path, text).await?;
        Ok(ToolResult(FileChange { path, bytes, created: false, replaced }))
    }

    /// Lists the entries of a directory in the sandbox, with the type and size of each entry.
    /// Symbolic links are listed and not followed. One call returns at most 1000 entries, and the
    /// number of entries that are left out.
    #[tool(
        output_schema = schema_for_output::<Listing>(),
        annotations(title = "List files", read_only_hint = true, open_world_hint = false)
    )]
    async fn list_files(
        &self,
        Parameters(parameters): Parameters<ListFiles>,
    ) -> Result<ToolResult<Listing>, Refusal> {
        let client_sandbox = self.client_sandbox().await?;
        let path = client_sandbox.resolve_path(parameters.path.as_deref().unwrap_or_default());
        let depth = parameters.depth.unwrap_or(1).clamp(1, MAX_DEPTH);
        let found = client_sandbox.sandbox.files().list(&path, depth).await;
        let found = found.map_err(|error| not_listed(&client_sandbox, &path, &error))?;
        let left_out = found.len().saturating_sub(MOST_ENTRIES);
        let entries =
            found.iter().take(MOST_ENTRIES).map(|found| Entry::from_info(found, &path)).collect();
        Ok(ToolResult(Listing { path, entries, left_out }))
    }
}

async fn read(client_sandbox: &ClientSandbox, path: &str) -> Result<Vec<u8>, Refusal> {
    let files = client_sandbox.sandbox.files();
    let error = match files.read(path, LONGEST_FILE).await {
        Ok(bytes) => return Ok(bytes),
        Err(error) => error,
    };
    if error.code() == Some(Code::InvalidArgument)
        && files.stat(path).await.is_ok_and(|found| found.kind == FileType::Directory)
    {
        return Err(Refusal::new(
            chain(&error),
            "give the path of a file in this directory; list_files lists them",
        ));
    }
    Err(client_sandbox.refusal(&error))
}

/// Creates the refusal for a directory that cannot be listed, with a hint where to look instead.
fn not_listed(client_sandbox: &ClientSandbox, path: &str, error: &SessionError) -> Refusal {
    let above = Path::new(path).parent().filter(|above| !above.as_os_str().is_empty());
    match (error.code(), above) {
        (Some(Code::NotFound), Some(above)) => Refusal::new(
            chain(error),
            format!(
                "call list_files with the path `{}` to see which entries exist",
                above.display()
            ),
        ),
        (Some(Code::InvalidArgument), _) => {
            Refusal::new(chain(error), "call read_file to read a file")
        }
        _ => client_sandbox.refusal(error),
    }
}

async fn write(client_sandbox: &ClientSandbox, path: &str, text: String) -> Result<usize, Refusal> {
    let length = text.len();
    if length > LONGEST_WRITTEN {
        let message = format!(
            "the file would have {length} bytes; the maximum for one call is {LONGEST_WRITTEN}"
        );
        return Err(Refusal::new(
            message,
            "write several smaller files, or create the file with a program that run_command \
             starts",
        ));
    }
    let _disturbance = client_sandbox.spares.disturbed();
    client_sandbox
        .sandbox
        .files()
        .write(path, text.into_bytes())
        .await
        .map_err(|error| client_sandbox.refusal(&error))?;
    Ok(length)
}

/// Returns the text after an edit and the number of replaced places.
fn edited(text: &str, parameters: &EditFile) -> Result<(String, usize), Refusal> {
    let EditFile { path, old_text, new_text, replace_all } = parameters;
    if old_text.is_empty() {
        return Err(Refusal::new(
            "`old_text` is empty",
            "set `old_text` to the text to replace, or write the whole file with write_file",
        ));
    }
    match text.matches(old_text.as_str()).count() {
        0 => {
            let hint = if text.contains("\r\n") && old_text.contains('\n') {
                "the lines of the file end with CR LF: write `\\r\\n` at the line ends of \
                 `old_text`"
            } else {
                "read the file with read_file, and copy the text exactly, with its spaces and tabs"
            };
            Err(Refusal::new(format!("`old_text` occurs 0 times in `{path}`"), hint))
        }
        count if count > 1 && !replace_all => Err(Refusal::new(
            format!("`old_text` is not unique: it occurs {count} times in `{path}`"),
            "add surrounding text to `old_text`, or set `replace_all` to true to replace every \
             occurrence",
        )),
        count => Ok((text.replace(old_text.as_str(), new_text), count)),
    }
}

/// Returns `bytes` as text, or `None` if they contain NUL or are not UTF-8.
pub(crate) fn decode_text(bytes: &[u8]) -> Option<&str> {
    if bytes.contains(&0) { None } else { std::str::from_utf8(bytes).ok() }
}

impl FileText {
    fn from_bytes(path: String, bytes: &[u8], first: usize, limit: usize) -> FileText {
        let mut shown = FileText {
            path,
            content: String::new(),
            first_line: first,
            lines: 0,
            all_lines: 0,
            bytes: bytes.len(),
            binary: false,
            notes: Vec::new(),
        };
        let Some(text) = decode_text(bytes) else {
            shown.binary = true;
            let way = "inspect the file with run_command, such as `file FILE` or `xxd FILE | head`";
            shown.notes.push(format!("the file is binary and has {} bytes; {way}", bytes.len()));
            return shown;
        };
        shown.all_lines = text.lines().count();
        for line in text.split_inclusive('\n').skip(first - 1).take(limit) {
            let remaining = LONGEST_SHOWN - shown.content.len();
            if line.len() > remaining && shown.lines > 0 {
                break;
            }
            // A line longer than the limit is shown in part, because otherwise it could never be
            // shown.
            let fitting = line.floor_char_boundary(remaining);
            shown.content.push_str(&line[..fitting]);
            shown.lines += 1;
            if fitting < line.len() {
                shown.notes.push(format!(
                    "line {first} has {} bytes, and only its beginning is shown",
                    line.len()
                ));
                break;
            }
        }
        let last = first + shown.lines - 1;
        if first > shown.all_lines && shown.all_lines > 0 {
            shown.notes.push(format!("the file has only {} lines", shown.all_lines));
        } else if last < shown.all_lines {
            let (all, next) = (shown.all_lines, last + 1);
            shown.notes.push(format!(
                "lines {first} to {last} of {all} are shown; continue with first_line {next}"
            ));
        }
        shown
    }
}

impl Display for FileText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.bytes == 0 {
            formatter.write_str("[the file is empty]")?;
        }
        formatter.write_str(&self.content)?;
        write_notes(formatter, &self.notes)
    }
}

impl Display for FileChange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileChange { path, bytes, created, replaced } = self;
        match (created, replaced) {
            (true, _) => write!(formatter, "created `{path}`, {bytes} bytes"),
            (false, 0) => write!(formatter, "overwrote `{path}`, {bytes} bytes"),
            (false, 1) => write!(formatter, "changed `{path}` in 1 place, {bytes} bytes"),
            (false, count) => {
                write!(formatter, "changed `{path}` in {count} places, {bytes} bytes")
            }
        }
    }
}

impl Entry {
    fn from_info(found: &EntryInfo, listed: &str) -> Entry {
        let kind = match found.kind {
            _ if found.is_symlink => EntryKind::Link,
            FileType::File => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Link,
            FileType::Unspecified => EntryKind::Other,
        };
        let relative = found
            .path
            .strip_prefix(listed.trim_end_matches('/'))
            .and_then(|rest| rest.strip_prefix('/'));
        Entry { path: relative.unwrap_or(&found.path).to_owned(), kind, size: found.size }
    }
}

impl Display for Listing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Listing { path, entries, left_out } = self;
        write!(formatter, "{path}:")?;
        for Entry { path, kind, size } in entries {
            match kind {
                EntryKind::File => write!(formatter, "\n{path} ({size} bytes)")?,
                EntryKind::Directory => write!(formatter, "\n{path}/")?,
                EntryKind::Link => write!(formatter, "\n{path} (link)")?,
                EntryKind::Other => write!(formatter, "\n{path} (neither file nor directory)")?,
            }
        }
        match (entries.is_empty(), left_out) {
            (true, _) => formatter.write_str("\n[the directory is empty]"),
            (false, 0) => Ok(()),
            (false, count) => write!(
                formatter,
                "\n[{count} more entries are not shown: list a subdirectory, or use a smaller \
                 depth]"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
