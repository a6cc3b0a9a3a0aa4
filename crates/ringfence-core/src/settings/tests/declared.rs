use super::narrowing::keys_of_schema;
use super::*;

#[test]
fn every_key_of_the_schema_is_declared() {
    for key in keys_of_schema() {
        let is_declared = KEYS.iter().any(|setting| setting.name == key);
        assert!(is_declared, "`{key}` has no effect: declare it in settings/keys.rs");
    }
}

#[test]
fn every_declared_key_is_in_the_schema() {
    let keys = keys_of_schema();
    for setting in KEYS {
        assert!(keys.contains(setting.name), "no file can state `{}`", setting.name);
    }
}

#[test]
fn a_leading_tilde_means_home_wherever_a_value_is_a_path() {
    let is_path = |name: &str| ["a directory", "paths with colons between"].contains(&name);
    for setting in KEYS {
        let Some(variable) = setting.variable.filter(|variable| is_path(variable.value)) else {
            continue;
        };
        let settings = given().variable(variable.name, "~/x").load().unwrap();
        let row = settings.explain().into_iter().find(|row| row.key == setting.name).unwrap();
        assert!(row.value.contains("/home/ada/x"), "{}: {}", setting.name, row.value);
    }
}
