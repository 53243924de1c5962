use super::*;

const DEB822: &str = "Types: deb-src
URIs: http://first.example/debian
Suites: bookworm
Components: main

Types: deb
# http://snapshot.debian.org/archive
URIs: http://deb.debian.org/debian/
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
";

fn host(id: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
    let host = tempfile::tempdir().unwrap();
    fs::create_dir_all(host.path().join("etc/apt/sources.list.d")).unwrap();
    fs::write(host.path().join("etc/os-release"), format!("NAME=\"x\"\nID={id}\n")).unwrap();
    for (path, content) in files {
        fs::write(host.path().join(path), content).unwrap();
    }
    host
}

fn source(host: &tempfile::TempDir, options: &BuildOptions) -> (String, String, &'static str) {
    let source = Source::of(host.path(), options).unwrap();
    (source.mirror, source.suite, source.components)
}

#[test]
fn packages_come_from_where_the_hosts_do() {
    let tested = ("http://deb.debian.org/debian".to_owned(), "bookworm".to_owned(), "main");
    let none = BuildOptions::default();
    assert_eq!(source(&host("debian", &[]), &none), tested);
    let file = "etc/apt/sources.list.d/debian.sources";
    let of_file = source(&host("debian", &[(file, &DEB822.replace("deb.debian.org", "mirror.example"))]), &none);
    let known = Path::new("/usr/share/debootstrap/scripts/bookworm").exists();
    assert_eq!(of_file.0, if known { "http://mirror.example/debian" } else { MIRROR_DEFAULT });
    let lists =
        "# deb http://a.example/x bookworm main\ndeb [arch=amd64 signed-by=/a] http://b.example/debian bookworm main\n";
    let of_list = source(&host("debian", &[("etc/apt/sources.list", lists)]), &none);
    assert_eq!(of_list.0, if known { "http://b.example/debian" } else { MIRROR_DEFAULT });
    // debootstrap does not know the releases of a derived distribution.
    assert_eq!(source(&host("linuxmint", &[("etc/apt/sources.list", lists)]), &none), tested);
}

#[test]
fn sources_that_hold_a_password_or_no_release_are_passed_over() {
    for line in [
        "deb https://user:secret@mirror.example/debian bookworm main",
        "deb http://mirror.example/debian bookworm-backports main",
        "deb http://mirror.example/debian nodistro main",
        "deb http://mirror.example/debian ../../etc main",
        "deb file:/srv/debian bookworm main",
        "deb [ arch=amd64",
        "deb",
    ] {
        assert_eq!(of_list(line), None, "{line}");
    }
}

#[test]
fn what_an_operator_says_is_taken_or_refused() {
    let options = |mirror: &str, suite: &str| BuildOptions {
        mirror: Some(mirror.to_owned()),
        suite: Some(suite.to_owned()),
        ..BuildOptions::default()
    };
    let host = host("debian", &[]);
    let said = source(&host, &options("https://mirror.example/debian", "trixie"));
    assert_eq!(said, ("https://mirror.example/debian".to_owned(), "trixie".to_owned(), "main"));
    for (mirror, suite) in [
        ("https://mirror.example/debian", "--help"),
        ("https://mirror.example/debian", ""),
        ("https://mirror.example/debian", "a b"),
        ("https://mirror.example/debian", "../x"),
        ("--mirror", "bookworm"),
        ("file:///srv", "bookworm"),
    ] {
        let error = Source::of(host.path(), &options(mirror, suite)).unwrap_err();
        assert_eq!(error.to_string(), format!("the release `{suite}` or the mirror `{mirror}` is not valid"));
    }
}

#[test]
fn another_hash_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("package.tgz");
    fs::write(&file, "abc").unwrap();
    // The test vector of FIPS 180.
    let abc = "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
               2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f";
    let pinned = Pinned { package: "x", version: "1", sha512: abc };
    check(&file, &pinned, "url").unwrap();
    fs::write(&file, "abd").unwrap();
    let error = check(&file, &pinned, "https://registry.example/x").unwrap_err();
    assert_eq!(error.to_string(), "the content of `https://registry.example/x` does not have the expected hash");
}
