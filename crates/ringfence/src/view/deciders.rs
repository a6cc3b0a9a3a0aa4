//! The paths that decide what programs on the host execute, found by one search: before a run, to protect them, and
//! after it, to report those that the run made, changed or removed although nothing could keep it from doing so.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::git::{GitScope, LinkSurvey, WrittenDirectories, find_git_deciders};
use super::guarded_links::{GuardedLink, LinkMemory};
use super::names::lies_in;
use super::observed::{FileIdentity, FileTime, ObservedFiles, TraceEnd, Unreadable, is_changed_since};
use super::search_cache::UnsavedSearch;

/// The state of a path that decides something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum PathState {
    Directory,
    File,
    /// A symbolic link with this text.
    Link(OsString),
    /// A file in which only a part decides, with the hash of that part.
    Content(String),
    /// A directory that cannot be searched, or a file that cannot be read.
    Denied,
    /// A file or directory that no search can judge. Every run reports it, because whatever a run does
    /// with it looks the same.
    Unknown,
}

/// The time of a search, on which its extent depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SearchPhase {
    /// The search keeps a command waiting.
    BeforeRun,
    /// The search has to find all that a run may have made since it began.
    AfterRun { began: FileTime },
}

/// The place and the extent of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SearchScope {
    /// No component of it is a symbolic link.
    pub(super) workspace: PathBuf,
    /// The trees that the sandbox may write to, the workspace first; resolved, too.
    pub(super) writable: Vec<PathBuf>,
    /// The paths that `protect` names, relative to the workspace.
    pub(super) literals: Vec<PathBuf>,
    /// The surroundings of the host's git, where its repositories are to be protected.
    pub(super) git: Option<GitScope>,
}

/// The result of a search.
#[derive(Debug)]
pub(super) struct Deciders {
    pub(super) files: ObservedFiles,
    pub(super) phase: SearchPhase,
    pub(super) written: WrittenDirectories,
    writable: Vec<PathBuf>,
    /// Only states that are as young as this are kept.
    noted_since: Option<FileTime>,
    /// Existing paths that the sandbox must not write to.
    pub(super) protected: BTreeSet<PathBuf>,
    /// Directories that cannot be searched: they may hold anything.
    pub(super) denied: BTreeSet<PathBuf>,
    /// All that exists and decides something, and that the sandbox could write to.
    states: BTreeMap<PathBuf, PathState>,
    /// Files that could not be read.
    pub(super) unreadable: Vec<Unreadable>,
    /// The directories of repositories, with the work trees of each.
    pub(super) repositories: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
}

/// A path that exists, free of links.
#[derive(Debug, Clone)]
pub(super) struct ResolvedPath {
    pub(super) path: PathBuf,
    pub(super) is_directory: bool,
}

impl Deciders {
    /// Searches where `scope` says.
    pub(super) fn find(scope: &SearchScope, phase: SearchPhase) -> Deciders {
        let mut deciders = Deciders::new(scope, phase);
        for path in &scope.literals {
            deciders.protect(&scope.workspace.join(path));
        }
        if let Some(git) = &scope.git {
            find_git_deciders(&mut deciders, git, &scope.workspace);
        }
        deciders
    }

    fn new(scope: &SearchScope, phase: SearchPhase) -> Deciders {
        Deciders {
            files: ObservedFiles::new(&scope.workspace),
            phase,
            written: WrittenDirectories::default(),
            writable: scope.writable.clone(),
            noted_since: None,
            protected: BTreeSet::new(),
            denied: BTreeSet::new(),
            states: BTreeMap::new(),
            unreadable: Vec::new(),
            repositories: BTreeMap::new(),
        }
    }

    /// The result of an earlier search of `scope`, where all that it looked at is the same.
    pub(super) fn from_kept(
        scope: &SearchScope,
        identities: Vec<(PathBuf, FileIdentity)>,
        protected: BTreeSet<PathBuf>,
        states: BTreeMap<PathBuf, PathState>,
        written: WrittenDirectories,
    ) -> Deciders {
        let mut deciders = Deciders::new(scope, SearchPhase::BeforeRun);
        deciders.files.keep(identities);
        Deciders { protected, states, written, ..deciders }
    }

    /// All states, if a search of the same files finds the same ones.
    pub(super) fn states_if_judged(&self) -> Option<Vec<(PathBuf, PathState)>> {
        let is_judged = |state: &PathState| !matches!(state, PathState::Unknown | PathState::Denied);
        let is_complete = self.denied.is_empty() && self.unreadable.is_empty() && self.states.values().all(is_judged);
        is_complete.then(|| self.states.iter().map(|(path, state)| (path.clone(), state.clone())).collect())
    }

    /// Follows a path, and keeps the links on its way: whoever replaces one decides where the path ends.
    pub(super) fn resolve(&mut self, path: &Path) -> Option<ResolvedPath> {
        let trace = self.files.trace(path);
        for (link, text) in trace.links {
            self.note(&link, PathState::Link(text.into()));
        }
        match trace.end {
            TraceEnd::At { path, is_directory } => Some(ResolvedPath { path, is_directory }),
            TraceEnd::Missing(_) => None,
            // A worktree's `.git` is a file: it must keep pointing where it points.
            TraceEnd::BelowFile(path) => {
                self.protect_resolved(&ResolvedPath { path, is_directory: false });
                None
            }
            TraceEnd::Denied(directory) => {
                self.note(&directory, PathState::Denied);
                if self.is_writable(&directory) {
                    self.denied.insert(directory);
                }
                None
            }
        }
    }

    /// Protects the file or directory that a path leads to.
    pub(super) fn protect(&mut self, path: &Path) -> Option<ResolvedPath> {
        let found = self.resolve(path)?;
        self.protect_resolved(&found);
        Some(found)
    }

    /// Protects a file or directory, and reports it where it was not there before.
    pub(super) fn protect_resolved(&mut self, found: &ResolvedPath) {
        self.protect_silently(&found.path);
        self.note(&found.path, if found.is_directory { PathState::Directory } else { PathState::File });
    }

    /// Protects a path that is harmless as it is now.
    pub(super) fn protect_silently(&mut self, path: &Path) {
        if self.is_writable(path) && !self.holds_writable(path) {
            self.protected.insert(path.to_path_buf());
        }
    }

    /// Keeps the state of a path that the sandbox could write to.
    pub(super) fn note(&mut self, path: &Path, state: PathState) {
        let is_young = |began| state == PathState::Unknown || is_changed_since(path, began);
        if self.is_writable(path) && self.noted_since.is_none_or(is_young) {
            self.states.insert(path.to_path_buf(), state);
        }
    }

    /// Keeps a file whose content does not matter.
    pub(super) fn note_existing(&mut self, path: &Path) {
        if self.files.has_name(path) {
            self.note(path, PathState::File);
        }
    }

    /// Keeps only states that are as young as `began` from now on, or all states.
    pub(super) fn note_only_since(&mut self, began: Option<FileTime>) {
        self.noted_since = began;
    }

    /// Keeps the part of a file that decides something.
    pub(super) fn note_content(&mut self, path: &Path, content: &[u8]) {
        let hash = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        self.note(path, PathState::Content(hash));
    }

    /// Reads a resolved file, and keeps that it could not be read.
    pub(super) fn read(&mut self, path: &Path, limit: u64) -> Option<Vec<u8>> {
        let read = self.files.read(path, limit);
        self.or_denied(read).flatten()
    }

    /// Unwraps a look at a file, and keeps that it failed.
    pub(super) fn or_denied<T>(&mut self, looked: Result<T, Unreadable>) -> Option<T> {
        looked
            .map_err(|failed| {
                self.note(&failed.path, PathState::Denied);
                if self.is_writable(&failed.path) {
                    self.unreadable.push(failed);
                }
            })
            .ok()
    }

    /// The trees that the sandbox may write to.
    pub(super) fn writable_trees(&self) -> impl Iterator<Item = PathBuf> {
        self.writable.clone().into_iter()
    }

    /// Tells whether the sandbox could write to a path.
    pub(super) fn is_writable(&self, path: &Path) -> bool {
        self.writable.iter().any(|root| lies_in(path, root))
    }

    /// Tells whether a path is a whole writable tree, or above one.
    pub(super) fn holds_writable(&self, path: &Path) -> bool {
        self.writable.iter().any(|root| lies_in(root, path))
    }
}

/// The paths to look at again after a run, and what they were before it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SerializedWatch", into = "SerializedWatch")]
pub(crate) struct Watched {
    scope: SearchScope,
    /// Paths at which the sandbox could change nothing.
    protected: BTreeSet<PathBuf>,
    before: BTreeMap<PathBuf, PathState>,
    /// All that the search looked at. While that and the files of the survey are the same, another search finds the same.
    identities: Option<Vec<(PathBuf, FileIdentity)>>,
    /// The moment of the search, before the run.
    began: FileTime,
    written: WrittenDirectories,
    check: OnceLock<RunCheck>,
    /// Links that rules of the policy lead through.
    links: Vec<GuardedLink>,
    memory: LinkMemory,
    /// The result of the search, to be kept while the command runs.
    unsaved: Option<Box<UnsavedSearch>>,
}

/// The fewest looks that tell whether a run changed anything.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RunCheck {
    survey: LinkSurvey,
    /// The identities that the survey does not cover.
    identities: Option<Vec<(PathBuf, FileIdentity)>>,
}

impl Watched {
    pub(super) fn new(scope: SearchScope, deciders: Deciders) -> Watched {
        let Deciders { files, protected, denied, states, writable, written, .. } = deciders;
        let protected = protected.into_iter().chain(denied).collect();
        let is_judged = states.values().all(|state| *state != PathState::Unknown);
        let identities = files.into_identities(&writable).filter(|_| is_judged);
        let (began, check) = (FileTime::now(), OnceLock::new());
        let (links, memory) = (Vec::new(), LinkMemory::default());
        Watched { scope, protected, before: states, identities, began, written, check, links, memory, unsaved: None }
    }

    /// Watches links, too, and remembers in `memory` which of them a run removed or turned.
    pub(super) fn with_links(self, links: Vec<GuardedLink>, memory: LinkMemory) -> Watched {
        Watched { links, memory, ..self }
    }

    /// Keeps the result of the search for the next run, too.
    pub(super) fn with_unsaved(self, unsaved: Option<UnsavedSearch>) -> Watched {
        Watched { unsaved: unsaved.map(Box::new), ..self }
    }

    #[cfg(test)]
    pub(super) fn has_unsaved_search(&self) -> bool {
        self.unsaved.is_some()
    }

    /// Looks for the directories in which git on the host writes. That takes a while and can be done at any time from the
    /// search to the end of the run: while a command runs, nobody waits for it.
    pub(super) fn survey(&self) -> &LinkSurvey {
        &self.run_check().survey
    }

    fn run_check(&self) -> &RunCheck {
        self.check.get_or_init(|| {
            let mut survey = LinkSurvey::take(&self.written, &self.scope.writable);
            let identities = self.identities.as_ref().map(|identities| survey.without_covered(identities));
            if let Some(unsaved) = &self.unsaved {
                unsaved.save();
            }
            RunCheck { survey, identities }
        })
    }

    /// Tells whether two searches found the same.
    pub(super) fn is_same(&self, other: &Watched) -> bool {
        self.scope == other.scope && self.protected == other.protected && self.before == other.before
    }

    /// The deciding paths that were made, changed or removed since, relative to the workspace when
    /// they are in it.
    pub(crate) fn planted(&self) -> Vec<String> {
        let shown = |path: &PathBuf| {
            let path = path.strip_prefix(&self.scope.workspace).unwrap_or(path);
            path.display().to_string()
        };
        self.changed().iter().map(shown).collect()
    }

    /// The deciding paths that were made, changed or removed since. Links among them are remembered,
    /// so that no later run shares a repository because of one, or leaves a file unguarded.
    fn changed(&self) -> BTreeSet<PathBuf> {
        let turned: Vec<&GuardedLink> = self.links.iter().filter(|link| link.is_changed()).collect();
        let is_unchanged = |identities: &Vec<(PathBuf, FileIdentity)>| {
            identities.iter().all(|(path, identity)| identity.still_holds(path))
        };
        let RunCheck { survey, identities } = self.run_check();
        let is_known = identities.as_ref().is_some_and(is_unchanged) && turned.is_empty();
        if is_known && !survey.is_changed_since(self.began) {
            return BTreeSet::new();
        }
        let is_protected = |path: &Path| path.ancestors().any(|above| self.protected.contains(above));
        let Deciders { states: after, repositories, .. } =
            Deciders::find(&self.scope, SearchPhase::AfterRun { began: self.began });
        let is_changed =
            |path: &PathBuf, state: &PathState| *state == PathState::Unknown || self.before.get(path) != Some(state);
        let changed = after.iter().filter(|(path, state)| is_changed(path, state));
        let removed = self.before.iter().filter(|(path, state)| is_missed(path, state) && !after.contains_key(*path));
        let found = changed.chain(removed).map(|(path, _)| path).filter(|path| !is_protected(path));
        let found: BTreeSet<PathBuf> = found.chain(turned.iter().map(|link| &link.link)).cloned().collect();
        if let Some(git) = &self.scope.git {
            let is_git_link = |path: &&PathBuf| path.ends_with(".git") || path.ends_with("gitdir");
            found.iter().filter(is_git_link).for_each(|path| git.distrusted().remember(path));
        }
        if !turned.is_empty() {
            self.memory.remember(&turned);
        }
        self.without_details(found, &repositories)
    }

    /// Replaces the files of a repository that was not there before by its directory, and leaves out
    /// the work tree's link to the repository of a new submodule: one line says it all.
    fn without_details(
        &self,
        mut found: BTreeSet<PathBuf>,
        repositories: &BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    ) -> BTreeSet<PathBuf> {
        let is_known = |path: &Path| {
            let next_state = self.before.range(path.to_path_buf()..).map(|(path, _)| path).next();
            let next_protected = self.protected.range(path.to_path_buf()..).next();
            [next_state, next_protected].into_iter().flatten().any(|next| next.starts_with(path))
        };
        for (gitdir, worktrees) in repositories {
            let below = found.range(gitdir.clone()..).take_while(|path| path.starts_with(gitdir));
            let below: Vec<PathBuf> = below.cloned().collect();
            if below.len() < 2 || is_known(gitdir) || self.scope.workspace.starts_with(gitdir) {
                continue;
            }
            found.retain(|path| !below.contains(path));
            found.insert(gitdir.clone());
            let keeper = gitdir.ancestors().find(|above| above.ends_with("modules")).and_then(Path::parent);
            if keeper.is_some_and(|keeper| repositories.contains_key(keeper) && is_known(keeper)) {
                let is_link = |path: &Path| path.parent().is_some_and(|above| worktrees.contains(above));
                found.retain(|path| !(path.ends_with(".git") && is_link(path)) || is_known(path));
            }
        }
        found
    }
}

/// Tells whether the next run would protect less because a path is gone: a link no longer leads to
/// a file, or a submodule is not known as one. A sequence that is gone is at its end.
fn is_missed(path: &Path, state: &PathState) -> bool {
    match state {
        PathState::Link(text) => !fs_err::read_link(path).is_ok_and(|now| now.as_os_str() == text),
        PathState::Content(_) => path.ends_with(".git"),
        _ => false,
    }
}

/// A path as JSON holds it: text where it can be.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum PathText {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<PathBuf> for PathText {
    fn from(path: PathBuf) -> PathText {
        path.into_os_string().into_string().map_or_else(|path| PathText::Bytes(path.into_vec()), PathText::Text)
    }
}

impl From<PathText> for PathBuf {
    fn from(path: PathText) -> PathBuf {
        match path {
            PathText::Text(text) => text.into(),
            PathText::Bytes(bytes) => OsString::from_vec(bytes).into(),
        }
    }
}

/// [`Watched`] as it is kept beside a sandbox's manifest. Paths need not be text.
#[derive(Default, Serialize, Deserialize)]
struct SerializedWatch {
    workspace: Option<PathText>,
    writable: Vec<PathText>,
    literals: Vec<PathText>,
    git: Option<GitScope>,
    protected: Vec<PathText>,
    before: Vec<(PathText, PathState)>,
    identities: Option<Vec<(PathText, FileIdentity)>>,
    #[serde(default)]
    began: FileTime,
    #[serde(default)]
    written_trees: Vec<PathText>,
    #[serde(default)]
    written_directories: Vec<PathText>,
    #[serde(default)]
    searched_trees: Vec<PathText>,
    #[serde(default)]
    links: Vec<GuardedLink>,
    #[serde(default)]
    memory: LinkMemory,
}

impl From<Watched> for SerializedWatch {
    fn from(watched: Watched) -> SerializedWatch {
        let texts = |paths: Vec<PathBuf>| paths.into_iter().map(PathText::from).collect();
        let Watched { scope, protected, before, identities, began, written, links, memory, .. } = watched;
        SerializedWatch {
            workspace: Some(scope.workspace.into()),
            writable: texts(scope.writable),
            literals: texts(scope.literals),
            git: scope.git,
            protected: texts(protected.into_iter().collect()),
            before: before.into_iter().map(|(path, state)| (path.into(), state)).collect(),
            identities: identities.map(|known| known.into_iter().map(|(path, seen)| (path.into(), seen)).collect()),
            began,
            written_trees: texts(written.trees),
            written_directories: texts(written.single),
            searched_trees: texts(written.searched),
            links,
            memory,
        }
    }
}

impl From<SerializedWatch> for Watched {
    fn from(written: SerializedWatch) -> Watched {
        let paths = |texts: Vec<PathText>| texts.into_iter().map(PathBuf::from);
        let scope = SearchScope {
            workspace: written.workspace.map(PathBuf::from).unwrap_or_default(),
            writable: paths(written.writable).collect(),
            literals: paths(written.literals).collect(),
            git: written.git,
        };
        Watched {
            scope,
            protected: paths(written.protected).collect(),
            before: written.before.into_iter().map(|(path, state)| (path.into(), state)).collect(),
            identities: written
                .identities
                .map(|known| known.into_iter().map(|(path, seen)| (path.into(), seen)).collect()),
            began: written.began,
            written: WrittenDirectories {
                trees: paths(written.written_trees).collect(),
                single: paths(written.written_directories).collect(),
                searched: paths(written.searched_trees).collect(),
            },
            check: OnceLock::new(),
            links: written.links,
            memory: written.memory,
            unsaved: None,
        }
    }
}

/// A path from bytes of a file.
pub(super) fn path_from(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
