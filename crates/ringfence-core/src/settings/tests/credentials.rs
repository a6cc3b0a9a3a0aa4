use super::*;

const ONE: &str = "[[credentials]]\nhost = 'api.example.org'\nfile = '~/.secrets/x'";

#[test]
fn credentials_of_the_user_are_added_to_those_of_the_system() {
    let settings = given()
        .system("[[credentials]]\nhost = 'b.org'\ncommand = ['pass', 'show', 'hunter22']")
        .user(&format!("\n{ONE}"))
        .load()
        .unwrap();
    let [of_system, of_user] = &settings.credentials[..] else {
        panic!("{:?}", settings.credentials)
    };
    assert_eq!(of_system.host.to_string(), "b.org");
    assert_eq!(of_user.origin, SecretOrigin::File("/home/ada/.secrets/x".into()));
    let explained = settings.explain();
    let row = explained.iter().find(|row| row.key == "credentials").unwrap();
    assert_eq!(
        row.value,
        "[b.org: Authorization from command pass, api.example.org: Authorization from file \
         /home/ada/.secrets/x]"
    );
    let sources: Vec<_> = row.sources.iter().map(ToString::to_string).collect();
    assert_eq!(
        sources,
        ["/etc/ringfence/config.toml:1", "/home/ada/.config/ringfence/config.toml:2"]
    );
}

#[test]
fn only_the_user_and_the_system_may_set_credentials() {
    for (origin, path) in
        [(FileOrigin::Project, "ringfence.toml"), (FileOrigin::Given, "policy.toml")]
    {
        let error = refuse(
            given().user(ONE).file(origin, ONE),
            &format!(
                "{path}:1: credentials are said in the user's or the system's own configuration \
                 alone"
            ),
        );
        assert_eq!(error.hint().unwrap(), "move them to ~/.config/ringfence/config.toml");
    }
    let mut flags = given();
    flags.flags.credentials = given().user(ONE).load().unwrap().credentials;
    refuse(
        flags,
        "a flag: credentials are said in the user's or the system's own configuration alone",
    );
    let policy = Policy::from_toml(ONE).unwrap_err().to_string();
    assert!(policy.starts_with("line 1, column 3: unknown key `credentials`"), "{policy}");
}

#[test]
fn an_error_in_a_credential_names_its_place() {
    let wrong = |text: &str| {
        let error = given().user(text).load().unwrap_err();
        std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
    };
    assert_eq!(
        wrong(&format!("{ONE}\n[[credentials]]\nhost = 'b.org'\nfil = '/x'")),
        "line 6, column 1: unknown key `credentials.fil`, did you mean `credentials.file`?"
    );
    assert_eq!(
        wrong("[[credentials]]\nhost = 'b.org'\nfile = '/x'\nheader = 'Authorization'"),
        "line 4, column 10: `credentials.header`: `Authorization` is no header with one `{secret}` \
         in its value: write for example `Authorization: Bearer {secret}`"
    );
    assert_eq!(
        wrong("[[credentials]]\nhost = 'b.org'"),
        "line 1, column 1: `credentials`: a secret comes from one place: write `file`, `command` \
         or `variable`"
    );
    assert_eq!(
        wrong("[[credentials]]\nhost = 'b.org'\nfile = 'x'"),
        "/home/ada/.config/ringfence/config.toml:1: credentials = \"x\" is not absolute"
    );
}
