//! Links between worktrees and their repository. No sandbox gets another workspace's repository by
//! forging them.

use conformance::{BackendSetup, BackendVariant, Caller};
use ringfence_test_ledger::require;

use super::site::RepositoryTemplates;
use super::vector::{FilePayload, GitScope, GitSetting, GitVector, PLAIN, compose};

/// Script that forges an entry for a worktree in the repository of `w`, as if `other` were that
/// worktree.
const FORGE: &str = "mkdir -p .git/worktrees/forged
echo '@S@/other/.git' > .git/worktrees/forged/gitdir
echo ../.. > .git/worktrees/forged/commondir
cp .git/HEAD .git/worktrees/forged/HEAD
";

/// Script that writes into the repository of `w` from a sandbox of the other workspace.
const USE: &str =
    "touch '@S@/w/.git/stolen' '@S@/w/.git/objects/stolen' '@S@/w/.git/refs/heads/stolen'\n";

/// Ways to forge a link. Each has a name, the user's preparation, the script of a sandbox of `w`,
/// and the script of a later sandbox of `other`.
const WAYS: [(&str, &str, &str, &str); 6] = [
    ("new-entry", "mkdir other", FORGE, "echo 'gitdir: @S@/w/.git/worktrees/forged' > .git\n"),
    (
        "entry-of-a-worktree-that-is-gone",
        "mkdir other; git -C w worktree add -q ../tree; rm -r tree",
        "echo '@S@/other/.git' > .git/worktrees/tree/gitdir\n",
        "echo 'gitdir: @S@/w/.git/worktrees/tree' > .git\n",
    ),
    (
        "entry-of-a-worktree-renewed",
        "mkdir other; git -C w worktree add -q ../tree",
        "mv .git/worktrees .git/old; cp -r .git/old .git/worktrees
         echo '@S@/other/.git' > .git/worktrees/tree/gitdir\n",
        "echo 'gitdir: @S@/w/.git/worktrees/tree' > .git\n",
    ),
    (
        "second-entry",
        "mkdir other; git -C w worktree add -q ../tree",
        FORGE,
        "echo 'gitdir: @S@/w/.git/worktrees/forged' > .git\n",
    ),
    (
        "other-is-a-worktree",
        "git clone -q w third; git -C third worktree add -q ../other",
        FORGE,
        "rm -f .git; echo 'gitdir: @S@/w/.git/worktrees/forged' > .git\n",
    ),
    (
        "other-links",
        "mkdir other",
        FORGE,
        "echo 'gitdir: @S@/w/.git/worktrees/forged' > pointer; ln -s pointer .git\n",
    ),
];

/// Composes the part of a way that happens in one workspace.
fn part(
    name: &'static str,
    workspace: &'static str,
    prepare: &'static str,
    script: &str,
) -> GitVector {
    let scope = GitScope { name, workspace, prepare, ..GitScope::PLAIN };
    let setting = GitSetting { name: "forge", config: "", extra: "", host: "" };
    let mut vector = compose(&scope, &setting, FilePayload::Whole(""), &PLAIN);
    vector.runs = vec![script.to_owned()];
    vector
}

fn check_links(setup: BackendSetup) {
    let templates = RepositoryTemplates::build(setup);
    let ways: Vec<GitVector> =
        WAYS.iter().map(|(name, prepare, forge, _)| part(name, "w", prepare, forge)).collect();
    super::check_each(&ways, |forge| {
        let is_this =
            |way: &&(&str, &str, &str, &str)| forge.id.starts_with(&format!("{}/", way.0));
        let way = WAYS.iter().find(is_this).expect("vectors are made of ways");
        let mut site = templates.copy_for(forge);
        let report = site.run_in_sandbox(&forge.runs[0], forge);
        let is_reported = report.planted.iter().any(|path| path.starts_with(".git/worktrees"));
        site.set_workspace("other");
        for script in [way.3, USE] {
            let later = part(way.0, "other", "", script);
            site.run_in_sandbox(script, &later);
        }
        let stolen = site.path().join("w/.git/stolen");
        if stolen.exists() && !is_reported {
            return Err("a sandbox of the other workspace wrote into the repository".to_owned());
        }
        site.run_on_host(USE, &part(way.0, "other", "", USE));
        if !stolen.exists() {
            return Err("proves nothing: without a sandbox, nothing is written either".to_owned());
        }
        Ok(())
    });
}

#[test]
fn a_forged_worktree_of_root_shows_no_other_workspaces_repository() {
    require!(root, binary, user_namespaces, git);
    check_links(BackendSetup { variant: BackendVariant::Native, caller: Caller::Root });
}

#[test]
fn a_forged_worktree_of_an_ordinary_user_shows_no_other_workspaces_repository() {
    require!(binary, ordinary_user, ordinary_user_namespaces, git);
    check_links(BackendSetup { variant: BackendVariant::Native, caller: Caller::Ordinary });
}

#[test]
fn a_forged_worktree_in_bubblewrap_shows_no_other_workspaces_repository() {
    require!(root, binary, user_namespaces, bwrap, git);
    check_links(BackendSetup { variant: BackendVariant::Bwrap, caller: Caller::Root });
}
