//! Test that the schemas in `docs/reference` match the types.

use std::path::Path;

use serde_json::Value;

/// Compares a generated schema with the file in `docs/reference`.
///
/// With `RINGFENCE_BLESS=1`, the function writes the file before it compares.
#[track_caller]
fn check(name: &str, schema: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name);
    let generated = format!(
        "{}\n",
        serde_json::to_string_pretty(schema).expect("a schema has only string keys")
    );
    if std::env::var_os("RINGFENCE_BLESS").is_some_and(|bless| bless == "1") {
        let directory = path.parent().expect("the file lies in a directory");
        fs_err::create_dir_all(directory).expect("docs/reference can be made");
        fs_err::write(&path, &generated).expect("the schema can be written");
    }
    let stored = fs_err::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == generated,
        "{} is out of date: run this test with RINGFENCE_BLESS=1",
        path.display()
    );
}

#[test]
fn the_stored_schema_of_a_policy_is_the_one_the_type_has() {
    check("policy.schema.json", &ringfence_core::policy::schema());
}

#[test]
fn the_stored_schema_of_a_configuration_is_the_one_the_type_has() {
    check("config.schema.json", &ringfence_core::settings::schema());
}
