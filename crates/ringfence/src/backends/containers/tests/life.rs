//! Tests of how containers are probed, refused, created and removed.

use ringfence_core::settings::KubernetesConfig;

use super::*;

#[test]
fn a_container_of_that_name_that_is_not_ours_is_left_alone_and_one_that_a_crash_left_is_not() {
    require!(docker, ordinary_user);
    let fixture = on_docker(ordinary(), ordinary());
    block_on(async {
        let client = fixture.client().await;
        let options = bollard::query_parameters::CreateContainerOptionsBuilder::default()
            .name(&fixture.paths().container())
            .build();
        let stranger = |labels| bollard::models::ContainerCreateBody {
            image: Some(TINY_IMAGE.to_owned()),
            labels,
            ..Default::default()
        };
        client.api.create_container(Some(options.clone()), stranger(None)).await.unwrap();
        let error = fixture.start(Policy::default(), agent(TINY_IMAGE)).await.unwrap_err();
        assert!(matches!(error, ContainerFailure::NameTaken { .. }), "{error}");
        removal::remove(&client, &fixture.paths().container()).await.unwrap();
        let ours = Some(
            [(format!("{LABEL_PREFIX}state"), fixture.base_directory().display().to_string())]
                .into(),
        );
        client.api.create_container(Some(options), stranger(ours)).await.unwrap();
        let instance = fixture.start(Policy::default(), agent(TINY_IMAGE)).await.unwrap();
        Box::new(instance).stop().await.unwrap();
    });
}

#[test]
fn a_sweep_removes_what_nobody_keeps_and_nothing_else() {
    require!(docker, podman, rootless_podman, ordinary_user);
    for fixture in
        [on_docker(ordinary(), ordinary()), on_podman(ordinary(), ordinary()), on_rootless_podman()]
    {
        block_on(async {
            let client = fixture.client().await;
            let sandbox = |name: &str| format!("{}-{name}", fixture.paths().name);
            let make = async |name: &str, state: &Path| {
                let container = container_name(&sandbox(name));
                let options = bollard::query_parameters::CreateContainerOptionsBuilder::default()
                    .name(&container)
                    .build();
                let labels = [("state", state.display().to_string()), ("name", sandbox(name))];
                let labels =
                    labels.map(|(key, value)| (format!("{LABEL_PREFIX}{key}"), value)).into();
                let body = bollard::models::ContainerCreateBody {
                    image: Some(TINY_IMAGE.to_owned()),
                    labels: Some(labels),
                    ..Default::default()
                };
                client.api.create_container(Some(options), body).await.unwrap();
                container
            };
            let exists = async |container: &str| {
                client
                    .api
                    .inspect_container(
                        container,
                        None::<bollard::query_parameters::InspectContainerOptions>,
                    )
                    .await
                    .is_ok()
            };
            let base_directory = fixture.base_directory();
            let sandbox_dir = base_directory.join(sandbox("kept"));
            fs_err::create_dir_all(&sandbox_dir).unwrap();
            let lock = fs_err::File::create(sandbox_dir.join("lock")).unwrap();
            rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
            let gone = make("gone", &base_directory).await;
            let kept = make("kept", &base_directory).await;
            let others = make("others", Path::new("/of/somebody/else")).await;
            sweep::sweep(fixture.kind, &fixture.host, &base_directory).await;
            assert_eq!(
                [exists(&gone).await, exists(&kept).await, exists(&others).await],
                [false, true, true]
            );
            drop(lock);
            sweep::sweep(fixture.kind, &fixture.host, &base_directory).await;
            assert_eq!([exists(&kept).await, exists(&others).await], [false, true]);
            removal::remove(&client, &others).await.unwrap();
        });
    }
}

#[test]
fn options_that_hand_over_the_host_are_refused_by_name() {
    require!(docker, podman, ordinary_user, root);
    let fixture = on_docker(ROOT, ROOT);
    let refuse = |policy: Policy, spec: ContainerSpec| {
        block_on(fixture.start(policy, spec)).map(drop).expect_err("must be refused").to_string()
    };
    let with = |capability: &str| ContainerSpec {
        capabilities: vec![capability.to_owned()],
        ..agent(TINY_IMAGE)
    };
    let error = refuse(Policy::default(), with("SYS_ADMIN"));
    assert!(error.starts_with("the capability `SYS_ADMIN` is not given to a container"), "{error}");
    let podman = on_podman(ROOT, ROOT);
    let error =
        block_on(podman.start(Policy::default(), with("cap_setuid"))).map(drop).unwrap_err();
    assert!(matches!(error, ContainerFailure::CapabilityOfRoot { .. }), "{error}");
    let missing = refuse(Policy::default(), agent("localhost/no-such-image:latest"));
    assert_eq!(missing, "there is no image `localhost/no-such-image:latest`");
    block_on(assert_left_nothing(&fixture));
}

#[test]
fn a_guest_that_does_not_start_is_reported_with_its_last_output_and_leaves_nothing() {
    require!(docker, podman, ordinary_user, root);
    for fixture in [on_docker(ordinary(), ordinary()), on_podman(ordinary(), ordinary())] {
        let guest = fixture.paths().guest;
        fs_err::write(&guest, "#!/bin/sh\nprintf 'cannot \\033[31mgo on\\n' >&2\nexit 3\n")
            .unwrap();
        // Same length as the real guest, so that ringfence does not install the real one again.
        fs_err::OpenOptions::new()
            .write(true)
            .open(&guest)
            .unwrap()
            .set_len(crate::sandbox::guest::GUEST_BYTES)
            .unwrap();
        block_on(async {
            let error = fixture
                .start(Policy::default(), agent(TINY_IMAGE))
                .await
                .map(drop)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains("ended at once; the last lines of its log: cannot [31mgo on"),
                "{error}"
            );
            for _ in 0..200 {
                let options = None::<bollard::query_parameters::InspectContainerOptions>;
                if fixture
                    .client()
                    .await
                    .api
                    .inspect_container(&fixture.paths().container(), options)
                    .await
                    .is_err()
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            panic!("the container was left");
        });
    }
}

#[test]
fn each_engine_says_what_it_holds_here() {
    require!(docker, podman, rootless_podman, ordinary_user, root);
    for fixture in [on_docker(ROOT, ROOT), on_podman(ROOT, ordinary()), on_docker(ROOT, ordinary())]
    {
        let policy = Policy::default().workspace(fixture.workspace());
        let spec = agent(TINY_IMAGE);
        let launcher = ringfence_linux::Launcher::Here;
        let ask = |freshness| {
            let request = ProbeRequest {
                host: &fixture.host,
                launcher: &launcher,
                policy: &policy,
                clauses: Clause::ALL.into(),
                container: &spec,
                kubernetes: &KubernetesConfig::default(),
                freshness,
            };
            block_on(probe::capabilities(fixture.kind, &request)).unwrap()
        };
        let found = ask(Freshness::Now);
        for clause in Clause::ALL {
            let support = found.support(clause);
            match clause {
                Clause::Disk => assert!(support.is_absent(), "{support:?}"),
                // Cgroup v1 does not count every buffer.
                Clause::Memory => assert!(!support.is_absent(), "{support:?}"),
                _ => assert!(support.is_enforced(), "{clause}: {support:?}"),
            }
        }
        assert!(found.summary.contains("runc"), "{}", found.summary);
        assert_eq!(ask(Freshness::Remembered), found);
        assert_eq!(
            fs_err::read_dir(fixture.base_directory()).unwrap().count(),
            1,
            "the directory of the trial is gone"
        );
    }
}

#[test]
fn an_image_is_built_from_a_containerfile_alone_and_a_build_that_fails_says_why() {
    require!(docker, podman, ordinary_user);
    for fixture in [on_docker(ordinary(), ordinary()), on_podman(ordinary(), ordinary())] {
        let tag = format!("localhost/{}:latest", fixture.paths().name);
        block_on(async {
            let client = fixture.client().await;
            let mut lines = Vec::new();
            let mut on_line = |line: &str| lines.push(line.to_owned());
            let good = format!("FROM {TINY_IMAGE}\nENV BUILT=here\n");
            image::build(&client, &good, &tag, &mut on_line).await.unwrap();
            assert!(lines.iter().any(|line| line.contains("ENV BUILT")), "{lines:?}");
            let image = image::find(&client, &tag).await.unwrap().unwrap();
            assert!(image.id.starts_with("sha256:"), "{image:?}");
            client
                .api
                .remove_image(&tag, None::<bollard::query_parameters::RemoveImageOptions>, None)
                .await
                .unwrap();
            let bad = format!("FROM {TINY_IMAGE}\nNONSENSE\n");
            let error =
                image::build(&client, &bad, &tag, &mut |_| {}).await.unwrap_err().to_string();
            assert!(error.to_lowercase().contains("nonsense"), "{error}");
        });
    }
}
