//! Tests of containers from within: the user, its privileges, and the owners of its files.

use super::*;
use crate::NetworkReach;

/// Checks an agent's container: the user, its privileges, and the owners of its files.
fn check_agent(fixture: &EngineFixture, inside: u32, outside: FileOwner) {
    block_on(async {
        let instance = fixture.start(Policy::default(), agent(TINY_IMAGE)).await.unwrap();
        let said = fixture
            .run_successfully(
                "id -u; id -un; pwd; echo $HOME; echo x > made && touch $HOME/y /tmp/z; cat \
                 /proc/self/status",
            )
            .await;
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(
            lines[..4],
            [inside.to_string().as_str(), "sandbox", "/workspace", "/home/sandbox"],
            "{said}"
        );
        for field in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(
                lines.contains(&format!("{field}:\t0000000000000000").as_str()),
                "{field}: {said}"
            );
        }
        assert!(lines.contains(&"NoNewPrivs:\t1") && lines.contains(&"Seccomp:\t2"), "{said}");
        assert_eq!(fixture.owner_of("made"), (outside.user, outside.group));
        assert!(
            !fixture.run("echo x > /etc/x || echo x > /x").await.ended.ok(),
            "the root is read-only"
        );
        assert_eq!(fixture.run_successfully("ls /sys/class/net").await, "lo");
        Box::new(instance).stop().await.unwrap();
        assert_left_nothing(fixture).await;
    });
}

#[test]
fn on_docker_an_ordinary_caller_is_itself() {
    require!(docker, ordinary_user);
    check_agent(&on_docker(ordinary(), ordinary()), ordinary().user, ordinary());
}

#[test]
fn on_podman_of_roots_an_ordinary_caller_is_itself() {
    require!(podman, ordinary_user);
    check_agent(&on_podman(ordinary(), ordinary()), ordinary().user, ordinary());
}

#[test]
fn on_rootless_podman_the_caller_is_the_usual_user_inside_and_itself_outside() {
    require!(rootless_podman, ordinary_user);
    check_agent(&on_rootless_podman(), 1000, ordinary());
}

#[test]
fn root_works_as_the_owner_of_the_workspace() {
    require!(docker, podman, ordinary_user, root);
    check_agent(&on_docker(ROOT, ordinary()), ordinary().user, ordinary());
    check_agent(&on_podman(ROOT, ordinary()), ordinary().user, ordinary());
}

#[test]
fn in_a_workspace_of_roots_nobody_is_root_and_files_are_roots_all_the_same() {
    require!(docker, podman, root);
    check_agent(&on_docker(ROOT, ROOT), 1000, ROOT);
    check_agent(&on_podman(ROOT, ROOT), 1000, ROOT);
}

/// Checks a developer's container: the user has the image's home, and the root is writable.
fn check_developer(fixture: &EngineFixture, outside: FileOwner) {
    block_on(async {
        let instance = fixture.start(Policy::default(), developer()).await.unwrap();
        assert_eq!(
            fixture
                .run_successfully("id -un; pwd; echo $HOME; getent passwd dev | cut -d: -f7")
                .await,
            "dev\n/home/dev/workspace\n/home/dev\n/bin/zsh"
        );
        fixture
            .run_successfully(
                "echo x > made && mkdir -p ~/.config && git init -q . && python3 -c pass",
            )
            .await;
        assert_eq!(fixture.owner_of("made"), (outside.user, outside.group));
        assert_eq!(instance.manifest().network, NetworkReach::Host);
        assert_ne!(fixture.run_successfully("ls /sys/class/net").await, "");
        assert!(!fixture.run("sudo -n true || su -c true").await.ended.ok());
        Box::new(instance).stop().await.unwrap();
        assert_left_nothing(fixture).await;
    });
}

#[test]
fn a_person_is_at_home_in_a_container_of_each_engine() {
    require!(docker, podman, rootless_podman, test_image_dev, ordinary_user, root);
    check_developer(&on_docker(ordinary(), ordinary()), ordinary());
    check_developer(&on_podman(ordinary(), ordinary()), ordinary());
    check_developer(&on_rootless_podman(), ordinary());
    check_developer(&on_docker(ROOT, ROOT), ROOT);
}

fn check_guards(fixture: &EngineFixture) {
    let workspace = fixture.workspace();
    fs_err::create_dir_all(workspace.join(".git/hooks")).unwrap();
    for file in [".git/config", ".env"] {
        fs_err::write(workspace.join(file), "SECRET").unwrap();
    }
    let owner = fs_err::metadata(&workspace).unwrap();
    for path in [".git", ".git/hooks", ".git/config", ".env"] {
        chown(workspace.join(path), Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    let mut unguarded = Policy::default();
    unguarded.filesystem.protect = Some(Vec::new());
    let guarded = Policy::default().hide(".env".parse().unwrap());
    block_on(async {
        let instance = fixture.start(unguarded, agent(TINY_IMAGE)).await.unwrap();
        assert_eq!(
            fixture
                .run_successfully(
                    "cat .env; echo x > .git/hooks/h; rm .git/hooks/h; mv .git g && mv g .git"
                )
                .await,
            "SECRET"
        );
        Box::new(instance).stop().await.unwrap();
        fixture.clear();
        let instance = fixture.start(guarded, agent(TINY_IMAGE)).await.unwrap();
        for (line, why) in [
            ("cat .env", "Permission denied"),
            ("echo x > .git/hooks/h", "Read-only file system"),
            ("echo x > .git/config", "Read-only file system"),
            ("mv .git g", "busy"),
            ("rm -rf .env", "busy"),
        ] {
            let captured = fixture.run(line).await;
            assert!(!captured.ended.ok() && captured.stderr.contains(why), "{line}: {captured:?}");
        }
        fixture.run_successfully("echo x > .git/index").await;
        Box::new(instance).stop().await.unwrap();
    });
    assert_eq!(fs_err::read_to_string(workspace.join(".env")).unwrap(), "SECRET");
}

#[test]
fn hidden_files_cannot_be_read_and_protected_ones_not_changed() {
    require!(docker, podman, rootless_podman, ordinary_user, root);
    check_guards(&on_docker(ordinary(), ordinary()));
    check_guards(&on_podman(ROOT, ROOT));
    check_guards(&on_rootless_podman());
}

#[test]
fn a_limit_that_an_engine_would_ignore_is_refused_unless_that_is_accepted() {
    require!(docker, podman, rootless_podman, ordinary_user, root);
    for fixture in
        [on_docker(ordinary(), ordinary()), on_podman(ordinary(), ordinary()), on_rootless_podman()]
    {
        block_on(async {
            let lenient = fixture.start(Policy::default(), agent(TINY_IMAGE)).await.unwrap();
            let limits = lenient.evidence();
            Box::new(lenient).stop().await.unwrap();
            fixture.clear();
            let strict = fixture.start_strictly(Policy::default(), agent(TINY_IMAGE)).await;
            match strict {
                Ok(instance) => {
                    assert!(limits.memory && limits.cpus && limits.processes, "{limits:?}");
                    Box::new(instance).stop().await.unwrap();
                }
                Err(ContainerFailure::Ignored { .. }) => {
                    assert!(!(limits.memory && limits.cpus && limits.processes), "{limits:?}");
                    assert!(
                        block_on(fixture.client()).is_rootless(),
                        "an engine of root's limits what it is told"
                    );
                }
                Err(error) => panic!("{error}"),
            }
        });
    }
}

#[test]
fn a_writable_root_is_given_where_it_is_asked_for() {
    require!(docker, ordinary_user);
    let fixture = on_docker(ordinary(), ordinary());
    block_on(async {
        let spec = ContainerSpec { root: Some(Root::Writable), ..agent(TINY_IMAGE) };
        let instance = fixture.start(Policy::default(), spec).await.unwrap();
        assert_eq!(
            fixture.run_successfully("grep ' / ' /proc/mounts | cut -d' ' -f4 | cut -d, -f1").await,
            "rw"
        );
        Box::new(instance).stop().await.unwrap();
    });
}
