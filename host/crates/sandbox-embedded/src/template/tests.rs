use std::os::unix::fs::symlink;

use super::*;

/// Creates the folder of a host with files that must be copied and files that must not.
fn host() -> tempfile::TempDir {
    let host = tempfile::tempdir().unwrap();
    let at = |path: &str| host.path().join(path);
    for folder in [
        "usr/bin",
        "usr/lib",
        "usr/local/bin",
        "etc/ssl/certs",
        "etc/ssl/private",
        "etc/alternatives",
        "etc/apt/sources.list.d",
        "etc/apt/auth.conf.d",
        "etc/python3.11",
        "etc/ssh",
        "etc/security",
        "var/lib/dpkg/info",
        "root",
        "home/person",
        "opt/node",
    ] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    for (path, content, mode) in [
        ("etc/passwd", "root:x:0:0::/root:/bin/zsh\nperson:x:1000:1000::/home/person:/bin/sh\n", 0o644),
        ("etc/shadow", "root:$y$secret:1::::::\n", 0o644),
        ("etc/ssh/ssh_host_ed25519_key", "secret", 0o644),
        ("etc/npmrc", "//registry/:_authToken=secret", 0o644),
        ("etc/pip.conf", "[global]\nindex-url = https://user:secret@host/", 0o644),
        ("etc/hosts", "10.0.0.1 secret", 0o644),
        ("etc/resolv.conf", "nameserver 10.0.0.2", 0o644),
        ("etc/ssl/private/key.pem", "secret", 0o644),
        ("etc/ssl/certs/ca-certificates.crt", "certificates", 0o644),
        ("etc/ssl/certs/both.pem", "-----BEGIN PRIVATE KEY-----\nsecret", 0o644),
        ("etc/apt/auth.conf.d/mirror.conf", "password secret", 0o644),
        ("etc/apt/sources.list.d/open.list", "deb http://mirror.example/debian bookworm main\n", 0o644),
        ("etc/apt/sources.list.d/closed.list", "deb https://user:secret@mirror.example/debian bookworm main\n", 0o644),
        ("etc/security/opasswd", "secret", 0o600),
        ("etc/security/limits.conf", "limits", 0o600),
        ("etc/python3.11/sitecustomize.py", "pass", 0o644),
        ("etc/os-release", "PRETTY_NAME=\"Some Linux 1\"\n", 0o644),
        ("var/lib/dpkg/status", "Package: base\n", 0o644),
        ("var/lib/dpkg/info/base.postinst", "#!/bin/sh\n", 0o755),
        ("usr/bin/bash", "", 0o755),
        ("usr/bin/python3.11", "", 0o755),
        ("usr/bin/apt-get", "", 0o755),
        ("usr/bin/curl", "no program", 0o644),
        ("opt/node/node", "", 0o755),
    ] {
        fs::write(at(path), content).unwrap();
        fs::set_permissions(at(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    for (target, link) in [
        ("usr/bin", "bin"),
        ("usr/lib", "lib"),
        ("python3.11", "usr/bin/python3"),
        ("/opt/node/node", "usr/local/bin/node"),
        ("git", "usr/bin/git"),
        ("/usr/bin/python3", "etc/alternatives/python"),
        ("/opt/node/node", "etc/alternatives/node"),
        ("/root/secret", "etc/alternatives/secret"),
        ("../../../root", "etc/ssl/certs/up"),
    ] {
        symlink(target, at(link)).unwrap();
    }
    host
}

fn files(folder: &Path, beneath: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path(), beneath));
        } else {
            found.push(entry.path().strip_prefix(beneath).unwrap().display().to_string());
        }
    }
    found.sort();
    found
}

#[test]
fn takes_what_is_named_and_no_secret() {
    let (host, dir) = (host(), tempfile::tempdir().unwrap());
    let template = default_template_of(host.path(), &dir.path().join("template")).unwrap();
    let found = files(&template.root, &template.root);
    let expected = [
        "bin",
        "etc/alternatives/python",
        "etc/apt/apt.conf.d/90sandbox",
        "etc/apt/sources.list.d/open.list",
        "etc/environment",
        "etc/fstab",
        "etc/group",
        "etc/hostname",
        "etc/hosts",
        "etc/machine-id",
        "etc/mtab",
        "etc/nsswitch.conf",
        "etc/os-release",
        "etc/passwd",
        "etc/pip.conf",
        "etc/python3.11/sitecustomize.py",
        "etc/resolv.conf",
        "etc/ssl/certs/ca-certificates.crt",
        "lib",
        "root/.bashrc",
        "root/.profile",
        "var/lib/dpkg/info/base.postinst",
        "var/lib/dpkg/status",
        "var/lock",
        "var/run",
    ];
    assert_eq!(found, expected);
    for path in found.iter().filter(|path| !template.root.join(path).is_symlink()) {
        let content = fs::read_to_string(template.root.join(path)).unwrap();
        assert!(!content.contains("secret") && !content.contains("person") && !content.contains("10.0.0."), "{path}");
    }
    let passwd = fs::read_to_string(template.root.join("etc/passwd")).unwrap();
    assert!(passwd.lines().all(|line| line.split(':').nth(1) == Some("*")), "{passwd}");
}

#[test]
fn says_what_is_there() {
    let (host, dir) = (host(), tempfile::tempdir().unwrap());
    let template = default_template_of(host.path(), &dir.path().join("template")).unwrap();
    assert_eq!(template.system, "Some Linux 1");
    // Programs outside of /usr, files that are not executable and broken links do not count.
    assert_eq!(template.programs, ["bash", "python3"]);
    assert_eq!(template.usr, Some(host.path().join("usr")));
    assert!(template.can_install_system_packages);
}

#[test]
fn is_made_once_and_anew_when_the_host_changes() {
    let (host, dir) = (host(), tempfile::tempdir().unwrap());
    let dir = dir.path().join("template");
    let first = default_template_of(host.path(), &dir).unwrap();
    fs::write(first.root.join("mark"), "").unwrap();
    let second = default_template_of(host.path(), &dir).unwrap();
    assert!(second == first && second.root.join("mark").exists());
    fs::write(host.path().join("var/lib/dpkg/status"), "Package: base\n\nPackage: more\n").unwrap();
    let third = default_template_of(host.path(), &dir).unwrap();
    assert!(third.root != first.root && !third.root.join("mark").exists());
    assert!(first.root.exists(), "a template that a sandbox may still use was removed");
    fs::create_dir(dir.join("partial-00")).unwrap();
    remove_stale(&dir, &third).unwrap();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    assert_eq!(built_template(&dir), None);
}

#[test]
fn a_system_with_two_places_for_programs_is_refused_and_leaves_nothing() {
    let (host, dir) = (host(), tempfile::tempdir().unwrap());
    fs::create_dir(host.path().join("sbin")).unwrap();
    let error = default_template_of(host.path(), dir.path()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/sbin is not a link to /usr on this machine; build a template with `monstrum sandbox template build`"
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn folders_have_the_modes_that_programs_expect() {
    let (host, dir) = (host(), tempfile::tempdir().unwrap());
    let template = default_template_of(host.path(), dir.path()).unwrap();
    for (path, mode) in [("tmp", 0o1777), ("var/tmp", 0o1777), ("root", 0o700), ("etc", 0o755), ("etc/passwd", 0o644)] {
        let found = fs::metadata(template.root.join(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(found, mode, "{path}");
    }
    let folder = fs::metadata(template.root.parent().unwrap()).unwrap().permissions().mode() & 0o7777;
    assert_eq!(folder, 0o700, "users other than root may enter the folder");
}
