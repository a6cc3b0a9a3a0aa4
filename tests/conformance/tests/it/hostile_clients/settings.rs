//! Settings files among the files of a client.

use ringfence_test_ledger::require;
use serde_json::{Value, json};

use super::{CreatedSandbox, KeyClient, against_each};
use crate::asks;

/// Returns the hash of a sandbox's policy, as its page shows it.
fn policy_of(client: &KeyClient<'_>, id: &str) -> Value {
    let facts: Value =
        serde_json::from_str(&client.check(&format!("GET /ringfence/sandboxes/{id}"), "", 200))
            .expect("it is JSON");
    facts["policySha256"].clone()
}

#[test]
fn settings_files_of_a_client_do_not_configure_its_next_sandbox() {
    require!(root, ordinary_user, binary, user_namespaces, ordinary_user_namespaces);
    against_each(|client, _| {
        let asks = asks::RawClient::for_url(&client.server.url);
        let policy = |made: &CreatedSandbox| policy_of(client, &made.id);
        for plant in [
            "printf '[filesystem]\\nhide = [\"note\"]\\n' > ringfence.toml",
            "printf '[limits]\\ntime = \"1s\"\\n' > ringfence.toml",
            "mkdir sub; printf '[filesystem]\\nworkspace = \"sub\"\\n' > ringfence.toml",
            "printf 'no settings at all' > ringfence.toml",
            "ln -s /etc/passwd ringfence.toml",
            "mkdir ringfence.toml",
            "printf 'backend = \"local\"' > ringfence.toml",
        ] {
            let made = client.make();
            assert_eq!(client.guest(&made, "POST /files?path=note", "kept").0, 200);
            asks.shell(&(made.id.clone(), made.token.clone()), plant, &[]);
            let saved = client.check(
                &format!("POST /sandboxes/{}/snapshots", made.id),
                r#"{"memory": false}"#,
                201,
            );
            let saved: Value = serde_json::from_str(&saved).expect("it is JSON");
            let snapshot = saved["snapshotID"].as_str().expect("it is text");
            let asked = json!({ "templateID": snapshot, "timeout": 300 }).to_string();
            let (status, child) = client.request("POST /sandboxes", &asked);
            assert_eq!(status, 201, "{plant}: {child}");
            client.server.note_sandboxes();
            let child: Value = serde_json::from_str(&child).expect("it is JSON");
            let text = |name: &str| child[name].as_str().expect("it is text").to_owned();
            let child = CreatedSandbox { id: text("sandboxID"), token: text("envdAccessToken") };
            assert_eq!(
                client.guest(&child, "GET /files?path=note", ""),
                (200, "kept".to_owned()),
                "{plant}"
            );
            assert_eq!(policy(&child), policy(&made), "{plant}");
            for id in [&made.id, &child.id] {
                client.check(&format!("DELETE /sandboxes/{id}"), "", 204);
            }
            client.check(&format!("DELETE /templates/{snapshot}"), "", 204);
        }
    });
}
