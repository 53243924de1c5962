//! Tests of the table of path patterns, including path traversal attempts.

use monstrum_guardian::matching::{PathPattern, match_path};

const MATCHES: &[(&str, &[&str])] = &[
    (
        "/home/user/**",
        &[
            "/home/user/docs/file.txt",
            "/home/user/a",
            "/home/user",
            "/home/user/",
            "//home//user/./x",
            "/home/user/.ssh",
            "/home/x/../user/a",
            "/../home/user/a",
        ],
    ),
    (
        "/tmp/*",
        &[
            "/tmp/file.txt",
            "/tmp/.hidden",
            "/tmp/a/",
            "/tmp//a",
            "/tmp/./a",
            "/tmp/a/../b",
            "/etc/../tmp/a",
            "/tmp/a b",
            "/tmp/...",
            "/tmp/a\\..\\..\\b",
            "/tmp/..%2f",
            "/tmp/\n",
        ],
    ),
    ("/tmp", &["/tmp", "/tmp/", "/tmp/a", "/tmp/a/b/c", "/tmp/a/..", "/x/../tmp/y"]),
    ("/tmp/", &["/tmp", "/tmp/a"]),
    ("/", &["/", "//", "/etc", "/..", "/a/../.."]),
    ("/**", &["/", "/etc/passwd"]),
    ("/*", &["/etc", "/etc/"]),
    ("/a/**/z", &["/a/z", "/a/b/z", "/a/b/c/z", "/a/z/z", "/a/z/../z"]),
    ("/a/**/m/*/**/z", &["/a/m/x/z", "/a/b/m/m/y/c/z", "/a/m/x/m/x/z"]),
    ("**/secret", &["secret", "a/secret", "a/b/secret"]),
    ("**/*.rs", &["x.rs", "a/b/x.rs", "./a/../x.rs"]),
    ("**", &["a", "a/b", ".", "./"]),
    ("*", &["a", "./a", "a/", "x/../a"]),
    ("src", &["src", "src/a/b", "./src", "x/../src/a"]),
    (".", &[".", "a", "a/b", "./", "a/.."]),
    ("", &[""]),
    ("/tmp/../var", &["/var", "/var/x"]),
    ("/tmp/*/../x", &["/tmp/x", "/tmp/x/y", "/tmp/q/../x"]),
    ("/data/*/logs/*.log", &["/data/a/logs/b.log"]),
    ("/data/[ab]?", &["/data/ax", "/data/b1"]),
    ("/data/[*]", &["/data/*", "/data/*/x"]),
    ("/data/[x", &["/data/[x", "/data/[x/y"]),
    ("/a**b", &["/ab", "/axxb"]),
];

const MISSES: &[(&str, &[&str])] = &[
    (
        "/home/user/**",
        &[
            "/home/user2",
            "/home/user/../other",
            "/home/user/../../etc/passwd",
            "/home/user/a/../../b",
            "home/user/a",
            "/home/userdocs",
            "/home/user/\0",
            "",
            ".",
            "/HOME/user/a",
            "/home/user\\a",
        ],
    ),
    (
        "/tmp/*",
        &[
            "/tmp",
            "/tmp/",
            "/tmp/a/b",
            "/tmp/..",
            "/tmp/.",
            "/tmp/../etc",
            "/tmp/a/../../etc",
            "tmp/a",
            "/tmp/a\0",
            "/tmp/a/..",
            "/tmp/a/../..",
            "/tmpx/a",
            "x/tmp/a",
        ],
    ),
    (
        "/tmp",
        &["/tmp2", "/tm", "/tmp/..", "/tmp/../etc", "tmp", "/tmp\0", "/tmp/a/../../etc/passwd", "./tmp", "%2ftmp"],
    ),
    ("/", &["", "a", ".", "..", "a/b"]),
    ("/**", &["a", "", "../etc", "./etc"]),
    ("/*", &["/", "/a/b", "/a/..", "a"]),
    ("/a/**/z", &["/a", "/z", "/a/b", "/az", "/a/zz", "/b/a/z", "/a/z/..", "/a/../z"]),
    ("/a/**/m/*/**/z", &["/a/m/z", "/a/m/x", "/m/x/z"]),
    ("**/secret", &["/secret", "secret/x", "../secret", "a/../../secret", "notsecret"]),
    ("**", &["/a", "/", "..", "../a", "a/../..", "a/../../a", ""]),
    ("*", &["/a", "a/b", "..", ".", "", "a/../.."]),
    ("src", &["/src", "../src", "src2", "src/../x", "src/../../src", "a/src", ""]),
    (".", &["..", "/", "/a", "../a", "a/../..", ""]),
    ("", &["a", "/", ".", " "]),
    ("../x", &["../x", "x", "/x", "../x/y"]),
    ("..", &["..", ".", "a", "/"]),
    ("/a/**/..", &["/a", "/", "/a/b", "/a/.."]),
    ("/tmp/../var", &["/tmp/x", "/tmp/../var/../etc"]),
    (
        "/data/*/logs/*.log",
        &["/data/a/b/logs/c.log", "/data/logs/c.log", "/data/a/logs/b.log/c", "/data/a/../logs/b.log"],
    ),
    ("/data/[ab]?", &["/data/cx", "/data/a", "/data/ax/y"]),
    ("/a\0", &["/a\0", "/a"]),
    ("/data/[*]", &["/data/x"]),
];

#[test]
fn the_table() {
    for (rows, expected) in [(MATCHES, true), (MISSES, false)] {
        for (pattern, values) in rows {
            let compiled = PathPattern::new(pattern);
            for value in *values {
                assert_eq!(match_path(value, pattern), expected, "value {value:?}, pattern {pattern:?}");
                assert_eq!(compiled.matches(value), expected, "value {value:?}, pattern {pattern:?}");
            }
        }
    }
}
