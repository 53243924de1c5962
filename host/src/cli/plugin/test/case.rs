//! A test case, which an author writes to `tests/NAME.yaml` in the plugin's folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use http::{HeaderName, HeaderValue, Method, StatusCode};
use monstrum_manifest::{Manifest, ManifestError, error_at, read_document};
use monstrum_types::{Code, Status};
use reqwest::Url;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::super::super::failure::Failure;
use super::super::faults;

/// The folder of the cases, in the plugin's folder.
const FOLDER: &str = "tests";
/// The maximum size of a case, enough for a long answer of an upstream.
const CASE_BYTES_MAX: usize = 1 << 20;
/// The maximum number of cases. More cases would take too long to run.
const CASES_MAX: usize = 1_000;

/// One call, the upstream's answers, and the expected result.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    #[serde(default)]
    pub(super) description: String,
    pub(super) tool: String,
    #[serde(default)]
    pub(super) params: Map<String, Value>,
    #[serde(default)]
    pub(super) resource: Resource,
    #[serde(default)]
    pub(super) grant: Grant,
    #[serde(default)]
    pub(super) http: Vec<Exchange>,
    pub(super) result: Expected,
}

/// The resource that the bot uses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Resource {
    #[serde(default)]
    pub(super) config: Map<String, Value>,
    #[serde(default)]
    pub(super) network: Map<String, Value>,
    /// The credential's authentication method. The default is the first method in the manifest whose fields a person
    /// fills in.
    #[serde(default)]
    pub(super) auth_method: Option<String>,
    /// The fields of the credential, with dummy values. If the map is empty, the resource has no credential.
    #[serde(default)]
    pub(super) credential: BTreeMap<String, String>,
}

/// The bot's permissions. If `allowed_operations` and `allowed_tools` are both absent, the bot may call all tools of
/// the plugin.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Grant {
    #[serde(default)]
    pub(super) allowed_operations: Option<Vec<String>>,
    #[serde(default)]
    pub(super) allowed_tools: Option<Vec<String>>,
    #[serde(default)]
    pub(super) scope_constraints: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub(super) limits: Map<String, Value>,
}

/// An expected request and its answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Exchange {
    pub(super) request: Wanted,
    #[serde(default)]
    pub(super) answer: Answer,
}

/// A request as the host sends it, including its credential. Fields that the case omits are not compared.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    #[serde(default = "get")]
    pub(super) method: String,
    /// The URL. If it contains a `?`, the query of the request must be equal; otherwise, every query matches.
    pub(super) url: String,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    /// The body. A string must be equal to the body of the request. Any other value is compared as JSON: the body of
    /// the request may have additional members.
    #[serde(default)]
    pub(super) body: Option<Value>,
}

fn get() -> String {
    Method::GET.to_string()
}

/// The upstream's answer, or the failure of the exchange.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    #[serde(default = "ok")]
    pub(super) status: u16,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    /// The body. A string is sent unchanged; any other value is sent as JSON.
    #[serde(default)]
    pub(super) body: Option<Value>,
    #[serde(default)]
    pub(super) failure: Option<Breakdown>,
}

fn ok() -> u16 {
    StatusCode::OK.as_u16()
}

impl Default for Answer {
    fn default() -> Self {
        Answer { status: ok(), headers: BTreeMap::new(), body: None, failure: None }
    }
}

/// The step at which an exchange fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Breakdown {
    Dns,
    Connect,
    Tls,
    Timeout,
    Protocol,
}

/// The answer that the caller must receive. Fields that the case omits are not compared.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Expected {
    pub(super) status: Status,
    #[serde(default)]
    pub(super) code: Option<Code>,
    #[serde(default)]
    pub(super) message: Option<String>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<Value>,
}

/// Deserializes a field in which null is an expected value. A missing field is `None` instead.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// A case and its file.
pub(super) struct Found {
    pub(super) file: String,
    pub(super) case: Case,
}

/// Reads every case of the plugin in `dir`, sorted by name. If cases have errors, shows all errors and fails.
pub(super) fn read_all(dir: &Path, manifest: &Manifest) -> Result<Vec<Found>, Failure> {
    let folder = dir.join(FOLDER);
    let paths = files(&folder)?;
    let mut cases = Vec::new();
    let mut wrong = 0;
    for path in paths {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(&path).map_err(|error| {
            Failure::of(
                format!("cannot read {file}"),
                &error,
                "check that the file is UTF-8 text and that you may read it",
            )
        })?;
        match read(&file, &text, manifest) {
            Ok(case) => cases.push(Found { file, case }),
            Err(fault) => {
                wrong += 1;
                faults::show(&fault, &text);
            }
        }
    }
    match wrong {
        0 => Ok(cases),
        _ => Err(Failure::new(
            format!("{wrong} cases in {} are invalid", folder.display()),
            "correct the errors above; docs/authors-guide.md describes the fields of a case",
        )),
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let hint = "create a case in tests/NAME.yaml; `monstrum plugin new` creates an example";
    let list = || -> std::io::Result<Vec<PathBuf>> {
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect()
    };
    let all = list().map_err(|error| Failure::of(format!("no cases in {}", folder.display()), &error, hint))?;
    let is_case = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "yaml");
    let mut paths: Vec<PathBuf> = all.into_iter().filter(is_case).collect();
    paths.sort();
    match paths.len() {
        0 => Err(Failure::new(format!("no cases in {}", folder.display()), hint)),
        count if count > CASES_MAX => {
            let message = format!("{count} cases in {} exceed the limit of {CASES_MAX}", folder.display());
            Err(Failure::new(message, "reduce the number of cases"))
        }
        _ => Ok(paths),
    }
}

fn read(file: &str, text: &str, manifest: &Manifest) -> Result<Case, ManifestError> {
    let case: Case = read_document(file, text, CASE_BYTES_MAX)?;
    let fault = |field: &str, message: String| Err(error_at(file, text, field, message));
    if !manifest.resource_type.tools.iter().any(|tool| tool.name.as_str() == case.tool) {
        return fault("tool", format!("the manifest has no tool `{}`", case.tool));
    }
    if case.resource.auth_method.is_some() && case.resource.credential.is_empty() {
        return fault(
            "resource.auth_method",
            "requires `resource.credential` with the fields of a credential".to_owned(),
        );
    }
    for (index, Exchange { request, answer }) in case.http.iter().enumerate() {
        let at = |field: &str| format!("http[{index}].{field}");
        if Method::from_bytes(request.method.as_bytes()).is_err() {
            return fault(&at("request.method"), "expected a method such as GET".to_owned());
        }
        let url = Url::parse(&request.url);
        if !url.is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host() && url.fragment().is_none())
        {
            return fault(
                &at("request.url"),
                "expected an absolute URL such as https://api.example.com/items".to_owned(),
            );
        }
        if !(200..=599).contains(&answer.status) {
            return fault(&at("answer.status"), "expected a status from 200 to 599".to_owned());
        }
        for (name, value) in &answer.headers {
            if HeaderName::from_bytes(name.as_bytes()).is_err() || HeaderValue::from_str(value).is_err() {
                return fault(&at("answer.headers"), format!("`{name}` and its value are not a valid header"));
            }
        }
    }
    Ok(case)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let text = "name: a\nversion: 1.0.0\nresource_type:\n  id: a\n  name: A\n  tools:\n    - { name: a_read, description: d, operation: a.read, input_schema: {} }\n";
        monstrum_manifest::parse("m", text).unwrap()
    }

    fn says(text: &str) -> String {
        read("c.yaml", text, &manifest()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let text = "tool: a_read\nhttp: [{ request: { url: 'https://a.example/' } }]\nresult: { status: success, data: null }\n";
        let case = read("c.yaml", text, &manifest()).unwrap();
        assert_eq!((case.http[0].request.method.as_str(), case.http[0].answer.status), ("GET", 200));
        assert_eq!(case.result.data, Some(Value::Null));
        let case = read("c.yaml", "tool: a_read\nresult: { status: error }\n", &manifest()).unwrap();
        assert_eq!(case.result.data, None);
    }

    #[test]
    fn faults_are_named_with_their_place() {
        let request = |rest: &str| format!("tool: a_read\nresult: {{ status: success }}\nhttp:\n  - {rest}\n");
        for (text, message) in [
            (
                "tool: a_read\nresult: { status: success }\nrequests: []\n".to_owned(),
                "c.yaml:3:1: requests: unknown field",
            ),
            (
                "tool: a_write\nresult: { status: success }\n".to_owned(),
                "c.yaml:1:7: tool: the manifest has no tool `a_write`",
            ),
            (
                "tool: a_read\nresult: { status: done }\n".to_owned(),
                "c.yaml:2:19: result.status: expected one of `success`",
            ),
            ("tool: a_read\n".to_owned(), "c.yaml:1:1: result: required field is missing"),
            (
                "tool: a_read\nresource: { auth_method: token }\nresult: { status: success }\n".to_owned(),
                "c.yaml:2:26: resource.auth_method: requires `resource.credential`",
            ),
            (request("{ request: { url: /items } }"), "c.yaml:4:23: http[0].request.url: expected an absolute URL"),
            (
                request("{ request: { url: 'https://a/', method: 'G T' } }"),
                "c.yaml:4:45: http[0].request.method: expected",
            ),
            (
                request("{ request: { url: 'https://a/' }, answer: { status: 42 } }"),
                "c.yaml:4:57: http[0].answer.status: expected a status",
            ),
            (
                request("{ request: { url: 'https://a/' }, answer: { headers: { 'a b': c } } }"),
                "c.yaml:4:58: http[0].answer.headers: `a b`",
            ),
        ] {
            assert!(says(&text).starts_with(message), "{}", says(&text));
        }
    }
}
