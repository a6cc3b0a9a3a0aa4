//! Search for the paths that decide what programs on the host execute (the deciders).
//!
//! The same search runs before a run, to protect these paths, and after it, to report those that
//! the run made, changed or removed although nothing could prevent it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::git::{GitScope, LinkSurvey, WrittenDirectories, find_git_deciders};
use super::guarded_links::{GuardedLink, RemovedLinks};
use super::observed::{
    FileTime, ObservedFiles, ObservedIdentity, TraceEnd, Unreadable, is_changed_since,
};
use super::search_cache::UnsavedSearch;
use super::visible_names::lies_in;

/// State of a path that decides something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum PathState {
    Directory,
    File,
    /// Symbolic link with this target text.
    Link(OsString),
    /// File of which only a part decides something, with the hash of that part.
    Content(String),
    /// Directory that cannot be searched, or file that cannot be read.
    Denied,
    /// File or directory that no search can judge. A search cannot tell whether a run has changed
    /// it, so every run reports the path.
    Unknown,
}

/// Time of a search, on which its extent depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SearchPhase {
    /// Before a run. The command waits for the search.
    BeforeRun,
    /// After a run. The search has to find everything that the run may have made since `began`.
    AfterRun { began: FileTime },
}

/// Place and extent of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SearchScope {
    /// Path of the workspace, without symbolic links in it.
    pub(super) workspace: PathBuf,
    /// Resolved trees that the sandbox may write to, the workspace first.
    pub(super) writable: Vec<PathBuf>,
    /// Paths that `protect` names, relative to the workspace.
    pub(super) literals: Vec<PathBuf>,
    /// Environment of the host's git, if git repositories are to be protected.
    pub(super) git: Option<GitScope>,
}

/// Result of a search.
#[derive(Debug)]
pub(super) struct Deciders {
    pub(super) files: ObservedFiles,
    pub(super) phase: SearchPhase,
    pub(super) written: WrittenDirectories,
    writable: Vec<PathBuf>,
    /// Time since which a path must have changed for its state to be kept, if set.
    noted_since: Option<FileTime>,
    /// Existing paths that the sandbox must not write to.
    pub(super) protected: BTreeSet<PathBuf>,
    /// Paths at which a file decides something. The file need not exist or be writable.
    pub(super) deciding: Vec<PathBuf>,
    /// Directories that cannot be searched and may contain anything.
    pub(super) denied: BTreeSet<PathBuf>,
    /// States of all existing paths that decide something and that the sandbox could write to.
    states: BTreeMap<PathBuf, PathState>,
    /// Files that could not be read.
    pub(super) unreadable: Vec<Unreadable>,
    /// Directories of repositories, with the work trees of each.
    pub(super) repositories: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
    /// Directories that had a repository before the run, as found by the survey.
    pub(super) surveyed_repositories: HashSet<PathBuf>,
}

/// Path that exists and has no symbolic links in it.
#[derive(Debug, Clone)]
pub(super) struct ResolvedPath {
    pub(super) path: PathBuf,
    pub(super) is_directory: bool,
}

impl Deciders {
    /// Runs the search that `scope` describes.
    pub(super) fn find(scope: &SearchScope, phase: SearchPhase) -> Deciders {
        Deciders::new(scope, phase).search(scope)
    }

    /// Searches after a run for everything that the run may have made since `began`.
    fn find_after_run(scope: &SearchScope, began: FileTime, survey: &LinkSurvey) -> Deciders {
        let mut deciders = Deciders::new(scope, SearchPhase::AfterRun { began });
        deciders.surveyed_repositories.clone_from(&survey.repositories);
        deciders.search(scope)
    }

    fn search(self, scope: &SearchScope) -> Deciders {
        let mut deciders = self;
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
            deciding: Vec::new(),
            denied: BTreeSet::new(),
            states: BTreeMap::new(),
            unreadable: Vec::new(),
            repositories: BTreeMap::new(),
            surveyed_repositories: HashSet::new(),
        }
    }

    /// Restores the result of an earlier search of `scope`. All files that the earlier search
    /// looked at must be unchanged.
    pub(super) fn from_kept(
        scope: &SearchScope,
        identities: Vec<(PathBuf, ObservedIdentity)>,
        protected: BTreeSet<PathBuf>,
        states: BTreeMap<PathBuf, PathState>,
        written: WrittenDirectories,
    ) -> Deciders {
        let mut deciders = Deciders::new(scope, SearchPhase::BeforeRun);
        deciders.files.keep(identities);
        Deciders { protected, states, written, ..deciders }
    }

    /// Returns all states, or `None` if another search of the same files could find other states.
    pub(super) fn states_if_judged(&self) -> Option<Vec<(PathBuf, PathState)>> {
        let is_judged =
            |state: &PathState| !matches!(state, PathState::Unknown | PathState::Denied);
        let is_complete = self.denied.is_empty()
            && self.unreadable.is_empty()
            && self.states.values().all(is_judged);
        is_complete.then(|| {
            self.states.iter().map(|(path, state)| (path.clone(), state.clone())).collect()
        })
    }

    /// Follows a path, and records the links on its way, because replacing one of them changes
    /// where the path ends.
    pub(super) fn resolve(&mut self, path: &Path) -> Option<ResolvedPath> {
        self.follow(path).ok()
    }

    /// Follows a path as [`Deciders::resolve`] does. If nothing exists at the path, the error is
    /// the path without links.
    fn follow(&mut self, path: &Path) -> Result<ResolvedPath, Option<PathBuf>> {
        let trace = self.files.trace(path);
        for (link, text) in trace.links {
            self.note(&link, PathState::Link(text.into()));
            self.deciding.push(link);
        }
        match trace.end {
            TraceEnd::At { path, is_directory } => Ok(ResolvedPath { path, is_directory }),
            TraceEnd::Missing(path) => Err(Some(path)),
            // The `.git` of a worktree is a file, which must keep naming the same directory.
            TraceEnd::BelowFile(path) => {
                self.protect_resolved(&ResolvedPath { path, is_directory: false });
                Err(None)
            }
            TraceEnd::Denied(directory) => {
                self.note(&directory, PathState::Denied);
                if self.is_writable(&directory) {
                    self.denied.insert(directory);
                }
                Err(None)
            }
        }
    }

    /// Follows a path at which a file decides something, or would decide something if it existed.
    pub(super) fn resolve_deciding(&mut self, path: &Path) -> Option<ResolvedPath> {
        let found = self.follow(path);
        let end = found.as_ref().map_or_else(Option::clone, |found| Some(found.path.clone()));
        self.deciding.extend(end);
        found.ok()
    }

    /// Protects the file or directory that a path leads to.
    pub(super) fn protect(&mut self, path: &Path) -> Option<ResolvedPath> {
        let found = self.resolve_deciding(path)?;
        self.protect_resolved(&found);
        Some(found)
    }

    /// Protects a file or directory, and records its state so that a new one is reported.
    pub(super) fn protect_resolved(&mut self, found: &ResolvedPath) {
        self.protect_silently(&found.path);
        self.note(
            &found.path,
            if found.is_directory { PathState::Directory } else { PathState::File },
        );
    }

    /// Protects a path without recording its state, because it is harmless as it is now.
    pub(super) fn protect_silently(&mut self, path: &Path) {
        self.deciding.push(path.to_path_buf());
        if self.is_writable(path) && !self.holds_writable(path) {
            self.protected.insert(path.to_path_buf());
        }
    }

    /// Records the state of a path if the sandbox could write to that path.
    pub(super) fn note(&mut self, path: &Path, state: PathState) {
        if self.is_writable(path) && (state == PathState::Unknown || self.notes_file(path)) {
            self.states.insert(path.to_path_buf(), state);
        }
    }

    /// Tells whether a file has changed recently enough for its state to be recorded now.
    pub(super) fn notes_file(&self, path: &Path) -> bool {
        self.noted_since.is_none_or(|began| is_changed_since(path, began))
    }

    /// Tells whether the search could not judge a path.
    pub(super) fn is_unjudged(&self, path: &Path) -> bool {
        matches!(self.states.get(path), Some(PathState::Unknown | PathState::Denied))
    }

    /// Records a path if it exists, regardless of the content of the file there.
    pub(super) fn note_existing(&mut self, path: &Path) {
        if self.files.has_name(path) {
            self.note(path, PathState::File);
        }
    }

    /// With a time, records from now on only paths that changed since `began`. With `None`, records
    /// all.
    pub(super) fn note_only_since(&mut self, began: Option<FileTime>) {
        self.noted_since = began;
    }

    /// Records the hash of the part of a file that decides something.
    pub(super) fn note_content(&mut self, path: &Path, content: &[u8]) {
        let hash = ringfence_core::to_hex(&Sha256::digest(content));
        self.note(path, PathState::Content(hash));
    }

    /// Reads a resolved file. A failure is recorded.
    pub(super) fn read(&mut self, path: &Path, limit: u64) -> Option<Vec<u8>> {
        let read = self.files.read(path, limit);
        self.or_denied(read).flatten()
    }

    /// Unwraps the result of looking at a file. A failure is recorded.
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

    /// Returns the trees that the sandbox may write to.
    pub(super) fn writable_trees(&self) -> impl Iterator<Item = PathBuf> {
        self.writable.clone().into_iter()
    }

    /// Tells whether the sandbox could write to a path.
    pub(super) fn is_writable(&self, path: &Path) -> bool {
        self.writable.iter().any(|root| lies_in(path, root))
    }

    /// Tells whether a path is the root of a writable tree, or lies above one.
    pub(super) fn holds_writable(&self, path: &Path) -> bool {
        self.writable.iter().any(|root| lies_in(root, path))
    }
}

/// Paths to look at again after a run, with their states before the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SerializedWatch", into = "SerializedWatch")]
pub(crate) struct WatchedPaths {
    scope: SearchScope,
    /// Paths at which the sandbox could change nothing.
    protected: BTreeSet<PathBuf>,
    before: BTreeMap<PathBuf, PathState>,
    /// Identities of everything that the search looked at. While these and the files of the survey
    /// are unchanged, another search finds the same.
    identities: Option<Vec<(PathBuf, ObservedIdentity)>>,
    /// Time of the search, before the run.
    began: FileTime,
    written: WrittenDirectories,
    check: OnceLock<RunCheck>,
    /// Links that rules of the policy lead through.
    links: Vec<GuardedLink>,
    memory: RemovedLinks,
    /// Result of the search, to be saved while the command runs.
    unsaved: Option<Box<UnsavedSearch>>,
}

/// Smallest set of checks that tells whether a run changed anything.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RunCheck {
    survey: LinkSurvey,
    /// Identities that the survey does not cover.
    identities: Option<Vec<(PathBuf, ObservedIdentity)>>,
}

impl WatchedPaths {
    pub(super) fn new(scope: SearchScope, deciders: Deciders) -> WatchedPaths {
        let Deciders { files, protected, denied, states, writable, written, .. } = deciders;
        let protected = protected.into_iter().chain(denied).collect();
        let is_judged = states.values().all(|state| *state != PathState::Unknown);
        let identities = files.into_identities(&writable).filter(|_| is_judged);
        let (began, check) = (FileTime::now(), OnceLock::new());
        let (links, memory) = (Vec::new(), RemovedLinks::default());
        WatchedPaths {
            scope,
            protected,
            before: states,
            identities,
            began,
            written,
            check,
            links,
            memory,
            unsaved: None,
        }
    }

    /// Also watches `links`. `memory` records the links that a run removes or changes.
    pub(super) fn with_links(self, links: Vec<GuardedLink>, memory: RemovedLinks) -> WatchedPaths {
        WatchedPaths { links, memory, ..self }
    }

    /// Also saves the result of the search for the next run.
    pub(super) fn with_unsaved(self, unsaved: Option<UnsavedSearch>) -> WatchedPaths {
        WatchedPaths { unsaved: unsaved.map(Box::new), ..self }
    }

    #[cfg(test)]
    pub(super) fn has_unsaved_search(&self) -> bool {
        self.unsaved.is_some()
    }

    /// Finds the directories in which git on the host writes.
    ///
    /// The survey takes a while, and can be taken at any time between the search and the end of the
    /// run. While the command runs, nobody waits for the survey.
    pub(super) fn survey(&self) -> &LinkSurvey {
        &self.run_check().survey
    }

    fn run_check(&self) -> &RunCheck {
        self.check.get_or_init(|| {
            let mut survey = LinkSurvey::take(&self.written, &self.scope.writable, self.began);
            let identities =
                self.identities.as_ref().map(|identities| survey.without_covered(identities));
            if let Some(unsaved) = &self.unsaved {
                unsaved.save();
            }
            RunCheck { survey, identities }
        })
    }

    /// Tells whether two searches had the same result.
    pub(super) fn is_same(&self, other: &WatchedPaths) -> bool {
        self.scope == other.scope
            && self.protected == other.protected
            && self.before == other.before
    }

    /// Returns the deciding paths that were made, changed or removed since the search, relative to
    /// the workspace if they lie in it.
    pub(crate) fn planted(&self) -> Vec<String> {
        let shown = |path: &PathBuf| {
            let path = path.strip_prefix(&self.scope.workspace).unwrap_or(path);
            path.display().to_string()
        };
        self.changed().iter().map(shown).collect()
    }

    /// Returns the deciding paths that were made, changed or removed since the search. Links among
    /// them are remembered, so that no later run shares a repository because of such a link, or
    /// leaves a file unguarded.
    fn changed(&self) -> BTreeSet<PathBuf> {
        let turned: Vec<&GuardedLink> =
            self.links.iter().filter(|link| link.is_changed()).collect();
        let is_unchanged = |identities: &Vec<(PathBuf, ObservedIdentity)>| {
            identities.iter().all(|(path, identity)| identity.still_holds(path))
        };
        let RunCheck { survey, identities } = self.run_check();
        let is_known = identities.as_ref().is_some_and(is_unchanged) && turned.is_empty();
        if is_known && !survey.is_changed_since(self.began) {
            return BTreeSet::new();
        }
        let is_protected =
            |path: &Path| path.ancestors().any(|above| self.protected.contains(above));
        let Deciders { states: after, repositories, .. } =
            Deciders::find_after_run(&self.scope, self.began, survey);
        let is_changed = |path: &PathBuf, state: &PathState| {
            *state == PathState::Unknown || self.before.get(path) != Some(state)
        };
        let changed = after.iter().filter(|(path, state)| is_changed(path, state));
        let removed = self
            .before
            .iter()
            .filter(|(path, state)| is_required_path(path, state) && !after.contains_key(*path));
        let found = changed.chain(removed).map(|(path, _)| path).filter(|path| !is_protected(path));
        let found: BTreeSet<PathBuf> =
            found.chain(turned.iter().map(|link| &link.link)).cloned().collect();
        if let Some(git) = &self.scope.git {
            let is_git_link = |path: &&PathBuf| path.ends_with(".git") || path.ends_with("gitdir");
            found.iter().filter(is_git_link).for_each(|path| git.distrusted().remember(path));
        }
        if !turned.is_empty() {
            self.memory.remember(&turned);
        }
        self.without_details(found, &repositories)
    }

    /// Replaces the files of a new repository by its directory, and leaves out the `.git` link in
    /// the work tree of a new submodule, because one line tells enough.
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
            let keeper =
                gitdir.ancestors().find(|above| above.ends_with("modules")).and_then(Path::parent);
            if keeper.is_some_and(|keeper| repositories.contains_key(keeper) && is_known(keeper)) {
                let is_link =
                    |path: &Path| path.parent().is_some_and(|above| worktrees.contains(above));
                found.retain(|path| !(path.ends_with(".git") && is_link(path)) || is_known(path));
            }
        }
        found
    }
}

/// Tells whether the next run would protect less because a path is gone: a link no longer leads to
/// a file, or a submodule is no longer recognized. A sequence that is gone has ended, so the result
/// for a sequence is `false`.
fn is_required_path(path: &Path, state: &PathState) -> bool {
    match state {
        PathState::Link(text) => !fs_err::read_link(path).is_ok_and(|now| now.as_os_str() == text),
        PathState::Content(_) => path.ends_with(".git"),
        _ => false,
    }
}

/// Path in JSON: text if it is UTF-8, and otherwise bytes.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum PathText {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<PathBuf> for PathText {
    fn from(path: PathBuf) -> PathText {
        path.into_os_string()
            .into_string()
            .map_or_else(|path| PathText::Bytes(path.into_vec()), PathText::Text)
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

/// Form in which [`WatchedPaths`] is saved beside a sandbox's manifest. The paths need not be
/// UTF-8.
#[derive(Default, Serialize, Deserialize)]
struct SerializedWatch {
    workspace: Option<PathText>,
    writable: Vec<PathText>,
    literals: Vec<PathText>,
    git: Option<GitScope>,
    protected: Vec<PathText>,
    before: Vec<(PathText, PathState)>,
    identities: Option<Vec<(PathText, ObservedIdentity)>>,
    #[serde(default)]
    began: FileTime,
    #[serde(default)]
    written_trees: Vec<PathText>,
    #[serde(default)]
    written_directories: Vec<PathText>,
    #[serde(default)]
    searched_trees: Vec<PathText>,
    #[serde(default)]
    read_trees: Vec<PathText>,
    #[serde(default)]
    links: Vec<GuardedLink>,
    #[serde(default)]
    memory: RemovedLinks,
}

impl From<WatchedPaths> for SerializedWatch {
    fn from(watched: WatchedPaths) -> SerializedWatch {
        let texts = |paths: Vec<PathBuf>| paths.into_iter().map(PathText::from).collect();
        let WatchedPaths {
            scope,
            protected,
            before,
            identities,
            began,
            written,
            links,
            memory,
            ..
        } = watched;
        SerializedWatch {
            workspace: Some(scope.workspace.into()),
            writable: texts(scope.writable),
            literals: texts(scope.literals),
            git: scope.git,
            protected: texts(protected.into_iter().collect()),
            before: before.into_iter().map(|(path, state)| (path.into(), state)).collect(),
            identities: identities
                .map(|known| known.into_iter().map(|(path, seen)| (path.into(), seen)).collect()),
            began,
            written_trees: texts(written.trees),
            written_directories: texts(written.single),
            searched_trees: texts(written.searched),
            read_trees: texts(written.contents),
            links,
            memory,
        }
    }
}

impl From<SerializedWatch> for WatchedPaths {
    fn from(written: SerializedWatch) -> WatchedPaths {
        let paths = |texts: Vec<PathText>| texts.into_iter().map(PathBuf::from);
        let scope = SearchScope {
            workspace: written.workspace.map(PathBuf::from).unwrap_or_default(),
            writable: paths(written.writable).collect(),
            literals: paths(written.literals).collect(),
            git: written.git,
        };
        WatchedPaths {
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
                contents: paths(written.read_trees).collect(),
            },
            check: OnceLock::new(),
            links: written.links,
            memory: written.memory,
            unsaved: None,
        }
    }
}

/// Returns bytes of a file as a path.
pub(super) fn path_from(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
