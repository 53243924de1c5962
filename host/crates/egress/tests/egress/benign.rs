//! Tests that redaction does not change data without secrets, even if the data looks like a secret.

use monstrum_egress::Redactor;
use monstrum_types::Secret;

use crate::support::{Call, Server, answer};

const CORPUS: &[(&str, &[u8])] = &[
    ("commits", include_bytes!("../corpus/benign/commits.txt")),
    ("uuids", include_bytes!("../corpus/benign/uuids.txt")),
    ("image", include_bytes!("../corpus/benign/image.png")),
    ("image in JSON", include_bytes!("../corpus/benign/image.json")),
    ("JWT documentation", include_bytes!("../corpus/benign/jwt.md")),
    ("minified JavaScript", include_bytes!("../corpus/benign/minified.js")),
    ("hex dump", include_bytes!("../corpus/benign/hexdump.txt")),
    ("numbers", include_bytes!("../corpus/benign/numbers.txt")),
    ("Chinese", include_bytes!("../corpus/benign/chinese.txt")),
    ("Chinese in UTF-16", include_bytes!("../corpus/benign/chinese-utf16.bin")),
    ("URLs", include_bytes!("../corpus/benign/urls.txt")),
    ("configuration", include_bytes!("../corpus/benign/config.yaml")),
    ("nested JSON", include_bytes!("../corpus/benign/nested.json")),
];

/// Realistic secrets: long and random secrets, and the shortest and simplest secrets that can be saved.
const SECRETS: &[&str] = &[
    "ghp_0a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R",
    "github_pat_11ABCDEFG0aBcDeFgHiJkL_mNoPqRsTuVwXyZ0123456789abcdefghijklmnopqrstuvwxyzABCD",
    "sk-proj-Zq8Yx7Wv6Ut5Sr4Qp3On2Ml1Kj0IhGfEdCbA98765432",
    "glpat-x9Kq2Lw7Zr4Tn6Vb8Yc3",
    "xoxb-263594206564-2343594206574-FGqddMF8t08v8N7Oq4i57vs1",
    "AKIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "5ebe2294ecd0e0f08eab7690d2a6ee69",
    "6f1ed002-ab55-4f1c-9f5d-ffffffffffff",
    "correct horse battery staple",
    "密碼是一二三四五六",
    "100%\\sure",
    "Tr0ub4do",
    "hunter22",
    "a1b2c3d4",
    "86753091",
    "AAAABBBB",
    "%20%20%2",
];

#[test]
fn the_benign_corpus_is_unchanged_for_all_secrets() {
    let all = Redactor::new(SECRETS.iter().map(|secret| Secret::new((*secret).to_owned())));
    for (name, text) in CORPUS {
        assert_eq!(all.redact_bytes(text.to_vec()), *text, "{name}");
        for secret in SECRETS {
            let redactor = Redactor::new([Secret::new((*secret).to_owned())]);
            assert_eq!(redactor.redact_bytes(text.to_vec()), *text, "{name} beside {secret}");
        }
    }
}

#[tokio::test]
async fn the_benign_corpus_is_unchanged_by_a_call() {
    for (name, text) in CORPUS {
        let server = Server::start(move |_| answer("200 OK", &[], text)).await;
        let response = Call::new(&server.url(), "/x").send().await.unwrap();
        assert_eq!(response.body, *text, "{name}");
    }
}

/// Tests the corpus: redaction must find a secret inside the same texts.
#[test]
fn a_secret_inside_the_corpus_is_found() {
    for secret in SECRETS {
        let redactor = Redactor::new([Secret::new((*secret).to_owned())]);
        for (name, text) in CORPUS {
            let (before, after) = text.split_at(text.len() / 2);
            let text = [before, b"\n", secret.as_bytes(), b"\n", after].concat();
            assert!(redactor.contains(&text), "{secret} in {name}");
        }
    }
}
