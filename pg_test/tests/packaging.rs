//! What leaves the house agrees with itself: versions, paths and names in the metadata of PGXN, Debian and Docker, and
//! the way from every frozen version.

use pg_test::markdown::{read, repository};
use pg_test::prelude::*;
use std::collections::BTreeSet;

fn toml_value(document: &str, name: &str) -> String {
    let line = document.lines().find_map(|line| line.strip_prefix(&format!("{name} = \"")));
    line.unwrap_or_else(|| panic!("no {name}")).trim_end_matches('"').to_owned()
}

fn version() -> String {
    toml_value(&read("Cargo.toml"), "version")
}

fn exists(path: &str) -> bool {
    repository().join(path).exists()
}

/// A version as PGXN wants it: three numbers, perhaps with a suffix that begins with a letter.
fn is_version(text: &str) -> bool {
    let parts: Vec<&str> = text.splitn(3, '.').collect();
    let number = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) && (part == "0" || !part.starts_with('0'))
    };
    let [major, minor, patch] = parts[..] else { return false };
    let digits = patch.bytes().take_while(u8::is_ascii_digit).count();
    let suffix = &patch[digits..];
    number(major)
        && number(minor)
        && number(&patch[..digits])
        && (suffix.is_empty() || suffix.trim_start_matches('-').starts_with(|c: char| c.is_ascii_alphabetic()))
}

/// A term: at least two characters, no blanks, slashes or control characters.
fn is_term(text: &str) -> bool {
    text.len() >= 2 && !text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/' || c == '\\')
}

#[test]
fn the_metadata_for_pgxn_is_what_its_specification_wants_and_of_this_version() {
    let meta: Value = serde_json::from_str(&read("META.json")).expect("JSON");
    let text = |path: &str| meta.pointer(path).and_then(Value::as_str).unwrap_or_else(|| panic!("no {path}"));
    for required in ["/abstract", "/description", "/generated_by"] {
        assert!(!text(required).trim().is_empty(), "{required}");
    }
    assert!(is_term(text("/name")));
    assert_eq!(text("/version"), version());
    assert!(is_version(&version()));
    assert_eq!(text("/meta-spec/version"), "1.0.0");
    assert!(text("/meta-spec/url").starts_with("https://pgxn.org/meta/spec.txt"));
    assert!(["stable", "testing", "unstable"].contains(&text("/release_status")));
    // One of the short names of the specification, and what the manifest says.
    assert_eq!(text("/license"), "postgresql");
    assert_eq!(toml_value(&read("Cargo.toml"), "license"), "PostgreSQL");
    assert!(exists("LICENSE"));
    let strings = |path: &str| -> Vec<String> {
        let list = meta.pointer(path).and_then(Value::as_array).unwrap_or_else(|| panic!("no list {path}"));
        list.iter().map(|one| one.as_str().expect("a string").to_owned()).collect()
    };
    assert!(strings("/maintainer").iter().all(|name| !name.trim().is_empty()) && !strings("/maintainer").is_empty());
    let tags = strings("/tags");
    assert!(tags.iter().all(|tag| !tag.is_empty() && tag.len() <= 255 && !tag.contains(['/', '\\'])), "{tags:?}");
    assert_eq!(tags.iter().collect::<BTreeSet<_>>().len(), tags.len(), "each tag once");

    let provides = meta["provides"].as_object().expect("an object");
    assert_eq!(provides.keys().collect::<Vec<_>>(), ["command_ledger"]);
    for (name, extension) in provides {
        assert!(is_term(name));
        assert_eq!(extension["version"], version());
        for file in ["file", "docfile"] {
            let path = extension[file].as_str().expect("a path");
            assert!(!path.starts_with('/') && exists(path), "{path}");
        }
    }
    let server = text("/prereqs/runtime/requires/PostgreSQL");
    assert!(is_version(server));
    assert_eq!(server.split('.').next(), majors().first().map(String::as_str), "the oldest that is built");
    let known = [
        "name",
        "version",
        "abstract",
        "description",
        "maintainer",
        "license",
        "provides",
        "meta-spec",
        "prereqs",
        "release_status",
        "resources",
        "generated_by",
        "no_index",
        "tags",
    ];
    for member in meta.as_object().expect("an object").keys() {
        assert!(known.contains(&member.as_str()) || member.to_lowercase().starts_with("x_"), "{member}");
    }
}

/// The majors that the manifest has a feature for.
fn majors() -> Vec<String> {
    let manifest = read("Cargo.toml");
    let features = manifest.lines().filter_map(|line| line.strip_prefix("pg")?.split_once(" = ["));
    features.map(|(major, _)| major.to_owned()).filter(|m| m.bytes().all(|b| b.is_ascii_digit())).collect()
}

#[test]
fn every_frozen_version_has_a_way_to_this_one_and_the_changelog_knows_them() {
    let names = |directory: &str| -> Vec<String> {
        let files = std::fs::read_dir(repository().join(directory)).expect("a directory");
        files.map(|file| file.expect("read").file_name().to_string_lossy().into_owned()).collect()
    };
    let strip = |name: &String| Some(name.strip_prefix("command_ledger--")?.strip_suffix(".sql")?.to_owned());
    let updates: Vec<(String, String)> = (names("sql").iter().filter_map(strip))
        .map(|pair| pair.split_once("--").map(|(a, b)| (a.to_owned(), b.to_owned())).expect("an update script"))
        .collect();
    let frozen: Vec<String> = names("sql/frozen").iter().filter_map(strip).collect();
    let changes = read("CHANGELOG.md");
    for version_then in &frozen {
        assert!(changes.contains(&format!("## [{version_then}]")), "CHANGELOG.md has no section {version_then}");
        let mut reached = vec![version_then.clone()];
        while let Some(next) = updates.iter().find(|(from, to)| reached.contains(from) && !reached.contains(to)) {
            reached.push(next.1.clone());
        }
        assert!(reached.contains(&version()), "no scripts lead from {version_then} to {}", version());
    }
    for (from, to) in &updates {
        assert!(frozen.contains(from), "{from} was never frozen");
        assert!(frozen.contains(to) || *to == version(), "{to} is neither frozen nor this version");
    }
    let control = read("command_ledger.control");
    for line in ["default_version = '@CARGO_VERSION@'", "module_pathname = '$libdir/command_ledger'", "trusted = false"]
    {
        assert!(control.contains(line), "{line}");
    }
}

#[test]
fn the_debian_control_data_is_complete() {
    let (control, script) = (read("ops/packaging/debian/control.in"), read("scripts/package.sh"));
    for field in ["Package: ", "Version: ", "Architecture: ", "Maintainer: ", "Depends: ", "Description: ", "Section: "]
    {
        assert_eq!(control.lines().filter(|line| line.starts_with(field)).count(), 1, "{field}");
    }
    let is_name = |word: &&str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase());
    let placeholders: BTreeSet<&str> = control.split('@').filter(is_name).collect();
    for placeholder in &placeholders {
        assert!(script.contains(&format!("s/@{placeholder}@/")), "nobody fills in @{placeholder}@");
    }
    assert_eq!(placeholders.len(), 5, "{placeholders:?}");
    // A description's further lines begin with a blank; an empty one is a dot.
    let description = control.split("Description: ").nth(1).expect("a description");
    assert!(description.lines().skip(1).all(|line| line.starts_with(' ') && line.len() > 1 && line.len() <= 80));
    assert!(description.contains("ALTER EXTENSION"));
    let name = control.lines().next().and_then(|line| line.strip_prefix("Package: ")).expect("a name");
    assert_eq!(name, "postgresql-@MAJOR@-command-ledger");
    assert!(script.contains("postgresql-$1-command-ledger"));
}

#[test]
fn the_image_and_the_compose_file_name_what_is_there() {
    let dockerfile = read("ops/packaging/Dockerfile");
    let major = read("scripts/lib.sh");
    let major = major.split("PG_MAJOR=${PG_MAJOR:-").nth(1).and_then(|rest| rest.split('}').next()).expect("a default");
    let rust = toml_value(&read("Cargo.toml"), "rust-version");
    let mut images: Vec<&str> = Vec::new();
    for line in dockerfile.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["FROM", image, ..] => images.push(image),
            ["COPY", flag, ..] if flag.starts_with("--from=build") => {}
            ["COPY", ref paths @ .., _] => paths.iter().for_each(|path| assert!(exists(path), "{line}")),
            ["RUN", program, ..] if program.starts_with("scripts/") => assert!(exists(program), "{line}"),
            _ => {}
        }
    }
    assert_eq!(images, [format!("rust:{rust}-bookworm"), format!("postgres:{major}-bookworm")]);
    for words in [
        format!("scripts/package.sh {major}"),
        format!("/tmp/postgresql-{major}-command-ledger_*.deb"),
        "shared_preload_libraries=command_ledger".to_owned(),
    ] {
        assert!(dockerfile.contains(&words), "the Dockerfile lacks {words}");
    }
    // What the build makes must not be copied into it.
    let ignored = read("ops/packaging/Dockerfile.dockerignore");
    for directory in [".git", "target", "dist"] {
        assert!(ignored.lines().any(|line| line == directory), "{directory}");
    }

    let compose = read("ops/packaging/compose.yaml");
    let value = |name: &str| {
        let line = compose.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}: ")));
        line.unwrap_or_else(|| panic!("compose.yaml has no {name}")).to_owned()
    };
    let context = repository().join("ops/packaging").join(value("context"));
    assert!(context.join(value("dockerfile")).is_file());
    assert_eq!(context.canonicalize().expect("a directory"), repository().canonicalize().expect("a directory"));
    let settings = read("src/settings.rs");
    for setting in compose.split("command_ledger.").skip(1).map(|rest| rest.split(['=', ')', ' ']).next()) {
        let setting = setting.expect("a name");
        assert!(settings.contains(&format!("command_ledger.{setting}\"")), "no setting command_ledger.{setting}");
    }
    assert!(compose.contains("shared_preload_libraries=command_ledger"));
    // In the image, secrets are one file each where the setting says.
    assert!(compose.contains("command_ledger.secrets_directory=/run/secrets"));
}
