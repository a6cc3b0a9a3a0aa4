//! Vectors: each is one way to make git on the host run a program that a sandbox chose.
//!
//! A vector is composed of a setting (the program is an editor, a filter, a hook…), a scope (the
//! file from which git takes the setting), and a trick (the way around the protection of that
//! file).

use std::path::{Component, Path, PathBuf};

/// One complete attack: the state that the user has, the actions of the sandbox, and the later
/// actions of the user.
#[derive(Debug, Clone)]
pub(super) struct GitVector {
    /// Name of the form `scope/setting/trick`.
    pub(super) id: String,
    pub(super) template: &'static str,
    /// Path of the workspace, relative to the site.
    pub(super) workspace: &'static str,
    /// Directory in which git is run on the host, relative to the workspace.
    pub(super) directory: &'static str,
    /// Variables of the user, for both ringfence and git.
    pub(super) environment: &'static [(&'static str, &'static str)],
    /// Script of the user before the runs, in the site.
    pub(super) prepare: String,
    /// Scripts of the sandbox in the workspace, one for each run.
    pub(super) runs: Vec<String>,
    /// Script of the user after the runs, in the workspace.
    pub(super) host: String,
    /// Paths that reveal the attack. A report of any one of them is enough.
    pub(super) effective: Vec<String>,
    /// True if ringfence may refuse to start a run.
    pub(super) may_be_refused: bool,
    /// Number of vectors of this kind of which one runs by default.
    pub(super) share: usize,
}

/// File from which git takes what it executes, and the repository around the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct GitScope {
    pub(super) name: &'static str,
    pub(super) template: &'static str,
    pub(super) workspace: &'static str,
    pub(super) directory: &'static str,
    pub(super) prepare: &'static str,
    /// Script of the sandbox before it writes the file.
    pub(super) extra: &'static str,
    /// File that the sandbox writes, relative to the workspace.
    pub(super) file: &'static str,
    pub(super) file_exists: bool,
    /// Git directory whose `HEAD` can be hidden temporarily. Empty if there is none.
    pub(super) git_directory: &'static str,
    /// Other paths that lead git to the file.
    pub(super) leads: &'static [&'static str],
    /// Variables of the user, for both ringfence and git.
    pub(super) environment: &'static [(&'static str, &'static str)],
}

impl GitScope {
    pub(super) const PLAIN: GitScope = GitScope {
        name: "",
        template: "plain",
        workspace: "w",
        directory: ".",
        prepare: "",
        extra: "",
        file: "",
        file_exists: true,
        git_directory: "",
        leads: &[],
        environment: &[],
    };
}

/// Content of a scope's file with which git runs the marker, and the command that triggers it.
#[derive(Debug, Clone, Copy)]
pub(super) struct GitSetting {
    pub(super) name: &'static str,
    /// Text in the format of git's configuration.
    pub(super) config: &'static str,
    /// Script of the sandbox that makes the files to which the configuration refers.
    pub(super) extra: &'static str,
    /// Script of the user, in the vector's directory.
    pub(super) host: &'static str,
}

/// The way in which the sandbox changes a file. After `build`, the new content for `$P` is in
/// `.evil/new`.
#[derive(Debug, Clone, Copy)]
pub(super) struct WriteTrick {
    pub(super) name: &'static str,
    needs: TrickNeeds,
    /// Script of the user before the runs.
    prepare: &'static str,
    /// Script of a run before the last one.
    first: Option<&'static str>,
    /// Script of the last run that reverts the changes of the first run.
    restore: &'static str,
    /// Script of the last run that writes the file.
    last: &'static str,
    /// Paths that the trick uses in place of the file.
    leads: &'static [&'static str],
    share: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrickNeeds {
    Nothing,
    /// The file must exist before the runs.
    File,
    /// The file must be in a directory other than the workspace's root.
    Parent,
    /// The file must be in a subdirectory of such a directory.
    Top,
    /// The scope must have a git directory.
    GitDirectory,
}

/// Content that is written to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FilePayload<'a> {
    /// Configuration that is appended to the file.
    Added(&'a str),
    /// Content that replaces the whole file.
    Whole(&'a str),
}

/// The marker: a program that creates a file when it runs.
pub(super) const MARKER: &str = "#!/bin/sh\n: > '@S@/out/ran'\nexit 1\n";

/// Shell functions that tricks use. `MODE` is `add` or `whole`, `P` is the file, and `D` is its
/// directory.
const FUNCTIONS: &str = r#"
build() {
    rm -f .evil/new
    if [ "$MODE" = add ]; then cat "$1" > .evil/new 2> /dev/null; fi
    cat .evil/payload >> .evil/new
    chmod 755 .evil/new
}
put() {
    mkdir -p "$D"
    build "$P"
    cat .evil/new > "$P"
    chmod 755 "$P"
}
renew() { mv "$1" "$1.old" && cp -a "$1.old" "$1"; }
"#;

pub(super) const PLAIN: WriteTrick = WriteTrick {
    name: "plain",
    needs: TrickNeeds::Nothing,
    prepare: "",
    first: None,
    restore: "",
    last: "put",
    leads: &[],
    share: 1,
};
/// Base of the tricks that are tried on every file. Only a share of them runs, because they make
/// many vectors.
const TRICK: WriteTrick = WriteTrick { share: 8, ..PLAIN };

/// Every trick but the plain one.
pub(super) const TRICKS: [WriteTrick; 20] = [
    WriteTrick { name: "delete-and-create", last: "build \"$P\"; rm -f \"$P\"; put", ..TRICK },
    WriteTrick {
        name: "rename-over",
        last: "mkdir -p \"$D\"; build \"$P\"; mv -f .evil/new \"$P\"",
        ..TRICK
    },
    WriteTrick {
        name: "renew-parent",
        needs: TrickNeeds::Parent,
        last: "renew \"$D\"; put",
        ..TRICK
    },
    WriteTrick { name: "renew-top", needs: TrickNeeds::Top, last: "renew \"$T\"; put", ..TRICK },
    WriteTrick {
        name: "link-parent",
        needs: TrickNeeds::Parent,
        last: "mkdir -p \"$D\"; mv \"$D\" \"$D.real\" && ln -s \"${D##*/}.real\" \"$D\"; put",
        ..TRICK
    },
    WriteTrick {
        name: "link-top",
        needs: TrickNeeds::Top,
        last: "mkdir -p \"$D\"; mv \"$T\" \"$T.real\" && ln -s \"$T.real\" \"$T\"; put",
        ..TRICK
    },
    WriteTrick {
        name: "link-file",
        last: "mkdir -p \"$D\"; build \"$P\"; mv .evil/new .evil/linked; rm -rf \"$P\"
               ln -s '@W@/.evil/linked' \"$P\"",
        ..TRICK
    },
    WriteTrick {
        name: "hard-link-of-the-user",
        needs: TrickNeeds::File,
        prepare: "ln \"$W/$P\" \"$W/other-name\"",
        last: "build other-name; cat .evil/new > other-name; chmod 755 other-name",
        leads: &["other-name"],
        ..TRICK
    },
    WriteTrick {
        name: "hard-link-of-a-run",
        needs: TrickNeeds::File,
        first: Some("ln \"$P\" .evil/other"),
        last: "build .evil/other; cat .evil/new > .evil/other; chmod 755 .evil/other",
        leads: &[".evil/other"],
        ..TRICK
    },
    WriteTrick {
        name: "hard-link-over",
        last: "mkdir -p \"$D\"; build \"$P\"; ln -f .evil/new \"$P\"",
        ..TRICK
    },
    WriteTrick {
        name: "close-parent",
        needs: TrickNeeds::Parent,
        first: Some("chmod 000 \"$D\""),
        restore: "chmod 755 \"$D\"",
        ..TRICK
    },
    WriteTrick {
        name: "close-top",
        needs: TrickNeeds::Top,
        first: Some("chmod 000 \"$T\""),
        restore: "chmod 755 \"$T\"",
        ..TRICK
    },
    WriteTrick {
        name: "close-file",
        needs: TrickNeeds::File,
        first: Some("chmod 000 \"$P\""),
        restore: "chmod 755 \"$P\"",
        ..TRICK
    },
    WriteTrick {
        name: "away-for-a-run",
        needs: TrickNeeds::File,
        first: Some("mv \"$P\" \"$P.away\""),
        last: "test -e \"$P.away\" && build \"$P.away\" && cat .evil/new > \"$P\" &&
               chmod 755 \"$P\" || put",
        ..TRICK
    },
    WriteTrick {
        name: "parent-away-for-a-run",
        needs: TrickNeeds::Parent,
        first: Some("mv \"$D\" \"$D.away\""),
        restore: "mv \"$D.away\" \"$D\"",
        ..TRICK
    },
    WriteTrick {
        name: "top-away-for-a-run",
        needs: TrickNeeds::Top,
        first: Some("mv \"$T\" .evil/away"),
        restore: "mv .evil/away \"$T\"",
        ..TRICK
    },
    WriteTrick {
        name: "dangling-link-then-target",
        first: Some(
            "mkdir -p \"$D\"; build \"$P\"; mv .evil/new .evil/keep
             rm -f \"$P\" && ln -s '@W@/.evil/target' \"$P\"",
        ),
        last: "test -L \"$P\" && cp .evil/keep .evil/target || put",
        ..TRICK
    },
    WriteTrick {
        name: "directory-for-a-run",
        needs: TrickNeeds::File,
        first: Some("cp \"$P\" .evil/keep; rm -f \"$P\" && mkdir \"$P\""),
        restore: "rmdir \"$P\" && cp .evil/keep \"$P\"",
        ..TRICK
    },
    WriteTrick {
        name: "other-name-in-proc",
        last: "mkdir -p \"$D\"; build \"$P\"; cat .evil/new > \"/proc/self/cwd/$P\"
               chmod 755 \"/proc/self/cwd/$P\"",
        ..TRICK
    },
    WriteTrick {
        name: "head-away-for-a-run",
        needs: TrickNeeds::GitDirectory,
        first: Some("mv \"$G/HEAD\" \"$G/HEAD.away\""),
        restore: "mv \"$G/HEAD.away\" \"$G/HEAD\"",
        share: 2,
        ..TRICK
    },
];

impl WriteTrick {
    /// Returns a trick that runs its own scripts instead of writing the scope's file.
    pub(super) const fn scripted(
        name: &'static str,
        first: Option<&'static str>,
        last: &'static str,
    ) -> WriteTrick {
        WriteTrick { name, first, last, ..PLAIN }
    }

    /// Returns true if the trick can be tried on a scope's file.
    pub(super) fn fits(&self, scope: &GitScope) -> bool {
        let (parent, top) = (parent_of(scope.file), top_of(scope.file));
        match self.needs {
            TrickNeeds::Nothing => true,
            TrickNeeds::File => scope.file_exists,
            TrickNeeds::GitDirectory => !scope.git_directory.is_empty(),
            TrickNeeds::Parent => parent != "." && top != "..",
            // With only one directory, the trick would be the same as that of the parent.
            TrickNeeds::Top => parent != "." && parent != top && top != "..",
        }
    }

    fn may_be_refused(&self) -> bool {
        self.name.starts_with("close")
    }
}

/// Composes a vector of a scope, a setting, the content of the scope's file, and a trick.
pub(super) fn compose(
    scope: &GitScope,
    setting: &GitSetting,
    payload: FilePayload<'_>,
    trick: &WriteTrick,
) -> GitVector {
    let (mode, text) = match payload {
        FilePayload::Added(text) => ("add", text),
        FilePayload::Whole(text) => ("whole", text),
    };
    let variables = format!(
        "W='@W@' R='@R@' P='{}' D='{}' T='{}' G='{}' MODE={mode}\n",
        scope.file,
        parent_of(scope.file),
        top_of(scope.file),
        scope.git_directory,
    );
    let files = format!(
        "mkdir -p .evil/hooks\n{}{}{}chmod 755 .evil/m .evil/hooks\n",
        here_document(".evil/m", MARKER),
        here_document(".evil/config", setting.config),
        here_document(".evil/payload", text),
    );
    let begin = format!("{variables}{FUNCTIONS}{files}");
    let last = [trick.restore, setting.extra, scope.extra, trick.last].join("\n");
    let last = format!("{begin}{last}\n");
    let first = trick.first.map(|first| format!("{begin}{first}\n"));
    let effective = std::iter::once(&scope.file).chain(scope.leads).chain(trick.leads);
    GitVector {
        id: format!("{}/{}/{}", scope.name, setting.name, trick.name),
        template: scope.template,
        workspace: scope.workspace,
        directory: scope.directory,
        environment: scope.environment,
        prepare: format!("{variables}{}\n{}\n", scope.prepare, trick.prepare),
        runs: first.into_iter().chain([last]).collect(),
        host: format!("cd '@W@/@R@' || exit\n{}\n", setting.host),
        effective: effective.map(|path| (*path).to_owned()).collect(),
        may_be_refused: trick.may_be_refused(),
        share: trick.share,
    }
}

/// Returns a here-document of the shell that writes a file.
pub(super) fn here_document(file: &str, text: &str) -> String {
    let line_break = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
    format!("cat > {file} <<'END-OF-FILE'\n{text}{line_break}END-OF-FILE\n")
}

fn parent_of(file: &str) -> &str {
    file.rsplit_once('/').map_or(".", |(parent, _)| parent)
}

fn top_of(file: &str) -> &str {
    file.split('/').next().unwrap_or(file)
}

impl GitVector {
    /// Hashes the name (FNV-1a), so that the same vectors are chosen every time.
    pub(super) fn hash(&self) -> usize {
        let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        self.id.bytes().fold(0x811c_9dc5, step) as usize >> 4
    }

    pub(super) fn add_to_last_run(&mut self, script: &str) {
        self.runs.last_mut().expect("there is one run at least").push_str(script);
    }

    /// Returns true if the report `planted` names a path that reveals the attack.
    pub(super) fn is_reported_by(&self, planted: &[String], workspace: &Path) -> bool {
        let planted: Vec<PathBuf> =
            planted.iter().map(|path| normalized(&workspace.join(path))).collect();
        let leads_to = |effective: &String| {
            let effective = normalized(&workspace.join(effective));
            let is_near = |path: &PathBuf| {
                path != workspace && effective.starts_with(path) || path.starts_with(&effective)
            };
            planted.iter().any(is_near)
        };
        self.effective.iter().any(leads_to)
    }
}

/// Removes `.` and `..` by name, without following links.
fn normalized(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => drop(result.pop()),
            other => result.push(other),
        }
    }
    result
}
