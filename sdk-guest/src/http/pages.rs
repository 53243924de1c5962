//! Pagination by Link headers (RFC 8288).
//!
//! Only `next` links to the origin of the first request are followed, because the upstream must not choose the server
//! of the next request.

use serde_json::Value;

use super::{response::HttpResponse, send};
use crate::error::Error;
use crate::log::{self, Level};
use crate::wit::monstrum::plugin::http as wire;

const NOT_FOLLOWED: &str = "the `next` link was not followed: it does not point to another page on the same origin";

/// Fetches at most `pages_max` pages and returns their items.
pub(super) fn collect(mut request: wire::Request, pages_max: usize) -> Result<Vec<Value>, Error> {
    let first = Origin::of(&request.url);
    let mut items = Vec::new();
    for page in 1..=pages_max {
        let response = send(&request)?.error_for_status()?;
        items.append(&mut response.json::<Vec<Value>>()?);
        let Some(next) = next_link(&response).filter(|_| page < pages_max) else { break };
        match next_url(&next, &request.url, first.as_ref()) {
            Some(url) => {
                request.url = url;
                // The link contains the query.
                request.query.clear();
            }
            None => {
                log::write(Level::Warn, NOT_FOLLOWED, &[("page", page.into())]);
                break;
            }
        }
    }
    Ok(items)
}

/// Resolves a link of the page with the URL `page`. Returns `None` if the link does not name another page of the first
/// request's origin.
fn next_url(link: &str, page: &str, first: Option<&Origin>) -> Option<String> {
    let first = first?;
    let url = resolve(link, page, first)?;
    Origin::of(&url).filter(|origin| origin == first).map(|_| url)
}

/// Resolves a link against the URL of its page (RFC 3986, section 5.2), which has the origin `origin`. Returns `None` if
/// the link has another scheme or refers to the page itself.
fn resolve(link: &str, page: &str, origin: &Origin) -> Option<String> {
    if link.contains("://") && Origin::of(link).is_some() {
        return Some(link.to_owned());
    }
    if link.starts_with("//") {
        return Some(format!("{}:{link}", origin.scheme));
    }
    let reference = link.split('#').next().unwrap_or_default();
    let (path, query) = match reference.split_once('?') {
        Some((path, query)) => (path, format!("?{query}")),
        None => (reference, String::new()),
    };
    let has_scheme = path.split('/').next().is_some_and(|start| start.contains(':'));
    if has_scheme || reference.is_empty() {
        return None;
    }
    let base = path_of(page);
    let path = match path {
        "" => base.to_owned(),
        path if path.starts_with('/') => without_dots(path),
        path => without_dots(&format!("{}/{path}", base.rsplit_once('/').map_or("", |(folder, _)| folder))),
    };
    Some(format!("{}{path}{query}", origin.text))
}

/// Returns the path of an absolute URL.
fn path_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or("", |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    rest.find('/').map_or("/", |start| &rest[start..])
}

/// Resolves `.` and `..` in an absolute path.
fn without_dots(path: &str) -> String {
    let mut kept = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        match segment {
            "." => {}
            ".." => {
                kept.pop();
            }
            segment => kept.push(segment),
        }
        // A path that ends with a dot segment is a folder.
        if matches!(segment, "." | "..") && segments.peek().is_none() {
            kept.push("");
        }
    }
    format!("/{}", kept.join("/"))
}

/// An origin with its original text. Origins are compared by scheme, host and port.
#[derive(Debug)]
struct Origin {
    text: String,
    scheme: String,
    host: String,
    port: u16,
}

impl PartialEq for Origin {
    fn eq(&self, other: &Self) -> bool {
        (&self.scheme, &self.host, self.port) == (&other.scheme, &other.host, other.port)
    }
}

impl Origin {
    /// Returns the origin of an absolute http or https URL. Returns `None` if the authority contains anything besides a
    /// host and a port, such as userinfo or a backslash, because URL parsers differ in their interpretation of such
    /// authorities.
    fn of(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let port_default = match scheme.as_str() {
            "https" => 443,
            "http" => 80,
            _ => return None,
        };
        let authority = rest.split(['/', '?', '#']).next()?;
        if !authority.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte)) {
            return None;
        }
        // A colon inside brackets belongs to an IPv6 address.
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
            _ => (authority, port_default),
        };
        let text = format!("{scheme}://{authority}");
        (!host.is_empty()).then(|| Origin { text, host: host.to_ascii_lowercase(), port, scheme })
    }
}

/// Returns the target of the first link whose relations contain `next`.
fn next_link(response: &HttpResponse) -> Option<String> {
    let headers = response.headers().iter().filter(|(name, _)| name.eq_ignore_ascii_case("link"));
    headers.flat_map(|(_, value)| links(value)).find(|(_, is_next)| *is_next).map(|(target, _)| target)
}

/// Returns all links of a header, each with a flag that is true if the link's relations contain `next`.
fn links(header: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    let mut rest = header;
    while let Some((_, after)) = rest.split_once('<') {
        let Some((target, after)) = after.split_once('>') else { break };
        let (params, after) = split_outside_quotes(after, ',');
        found.push((target.trim().to_owned(), is_next(params)));
        rest = after;
    }
    found
}

fn is_next(mut params: &str) -> bool {
    while !params.is_empty() {
        let (param, after) = split_outside_quotes(params, ';');
        params = after;
        if let Some((name, value)) = param.split_once('=')
            && name.trim().eq_ignore_ascii_case("rel")
        {
            // Only the first `rel` of a link counts.
            return value.trim().trim_matches('"').split_whitespace().any(|rel| rel.eq_ignore_ascii_case("next"));
        }
    }
    false
}

fn split_outside_quotes(text: &str, separator: char) -> (&str, &str) {
    let mut is_quoted = false;
    for (at, character) in text.char_indices() {
        if character == '"' {
            is_quoted = !is_quoted;
        } else if character == separator && !is_quoted {
            return (&text[..at], &text[at + separator.len_utf8()..]);
        }
    }
    (text, "")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Answer, Call};
    use crate::{Executor, Http, Operations, operations};

    struct Plugin;

    impl Executor for Plugin {
        const OPERATIONS: Operations = operations! {
            "list" => |request| {
                let http = Http::new(request).base("https://api.example.com");
                Ok(Value::Array(http.get("/items").query("per_page", 2).pages(3)?))
            },
        };
    }

    fn page(url: &str, items: Value, link: &str) -> Answer {
        Answer::get(url).json(items).header("Link", link)
    }

    #[test]
    fn pages_are_concatenated_up_to_the_maximum() {
        let next = |number: u32| format!("<https://api.example.com/items?page={number}>; rel=\"next\"");
        let run = Call::new("t", "list")
            .answer(page("https://api.example.com/items?per_page=2", json!([1, 2]), &next(2)))
            .answer(page("https://api.example.com/items?page=2", json!([3, 4]), &next(3)))
            .answer(page("https://api.example.com/items?page=3", json!([5]), &next(4)))
            .run(&Plugin);
        assert!(run.log.is_empty());
        assert_eq!(run.success(), json!([1, 2, 3, 4, 5]));
    }

    #[test]
    fn a_relative_next_is_followed() {
        let run = Call::new("t", "list")
            .answer(page("https://api.example.com/items?per_page=2", json!([1]), "</items?page=2>; rel=next"))
            .answer(page("https://api.example.com/items?page=2", json!([2]), "</items?page=1>; rel=prev"))
            .run(&Plugin);
        assert_eq!(run.success(), json!([1, 2]));
    }

    #[test]
    fn a_relative_next_is_resolved_against_its_page() {
        let page = "https://API.example.com:443/v1/items?per_page=2";
        let first = Origin::of(page);
        for (link, path) in [
            ("?page=2", "/v1/items?page=2"),
            ("items?page=2", "/v1/items?page=2"),
            ("./items?page=2", "/v1/items?page=2"),
            ("items/2#top", "/v1/items/2"),
            ("../v2/items", "/v2/items"),
            ("../../../items", "/items"),
            ("..", "/"),
            (".", "/v1/"),
            ("/items?page=a:b//c", "/items?page=a:b//c"),
            ("/v1/../items", "/items"),
            ("/a:b", "/a:b"),
            ("?next=https://evil.example", "/v1/items?next=https://evil.example"),
        ] {
            let expected = Some(format!("https://API.example.com:443{path}"));
            assert_eq!(next_url(link, page, first.as_ref()), expected, "{link}");
        }
        let same = next_url("//api.example.com/items", page, first.as_ref());
        assert_eq!(same.as_deref(), Some("https://api.example.com/items"));
        let first = Origin::of("https://a.example");
        for page in ["https://a.example", "https://a.example?x=/y/z"] {
            assert_eq!(next_url("b", page, first.as_ref()).as_deref(), Some("https://a.example/b"));
            assert_eq!(next_url("?b", page, first.as_ref()).as_deref(), Some("https://a.example/?b"));
        }
    }

    #[test]
    fn each_relative_next_is_resolved_against_its_own_page() {
        let run = Call::new("t", "list")
            .answer(page("https://api.example.com/items?per_page=2", json!([1]), "<?page=2>; rel=next"))
            .answer(page("https://api.example.com/items?page=2", json!([2]), "<more/3>; rel=next"))
            .answer(page("https://api.example.com/more/3", json!([3]), "<4>; rel=next"))
            .run(&Plugin);
        assert!(run.log.is_empty());
        assert_eq!(run.success(), json!([1, 2, 3]));
    }

    #[test]
    fn a_next_that_is_no_other_page_of_the_origin_is_not_followed() {
        for link in [
            "https://evil.example/items",
            "https://api.example.com.evil.example/items",
            "https://api.example.com@evil.example/items",
            "https://api.example.com:443@evil.example/items",
            "https://api.example.com\\@evil.example/items",
            "https://api.example.com:8443/items",
            "http://api.example.com/items",
            "http://api.example.com:443/items",
            "//evil.example/items",
            "//api.example.com@evil.example/items",
            "//api.example.com:8443/items",
            "javascript:alert(1)",
            "https:items",
            "https:/evil.example",
            "items:2",
            "#top",
            "",
        ] {
            let first =
                page("https://api.example.com/items?per_page=2", json!([1]), &format!("<{link}>; rel=\"next\""));
            let run = Call::new("t", "list").answer(first).run(&Plugin);
            assert_eq!(run.requests.len(), 1, "{link}");
            assert_eq!(run.log[0].message, NOT_FOLLOWED, "{link}");
            assert_eq!(run.success(), json!([1]));
        }
    }

    #[test]
    fn origins_are_compared_by_scheme_host_and_port() {
        let first = Origin::of("https://API.example.com/items");
        for link in ["https://api.example.com:443/x", "HTTPS://api.EXAMPLE.com?x", "https://api.example.com#x"] {
            assert_eq!(next_url(link, "https://API.example.com/items", first.as_ref()).as_deref(), Some(link));
        }
        assert_eq!(
            Origin::of("https://[::1]/x").map(|origin| (origin.host, origin.port)),
            Some(("[::1]".to_owned(), 443))
        );
        assert_eq!(
            Origin::of("https://[::1]:8/x").map(|origin| (origin.host, origin.port)),
            Some(("[::1]".to_owned(), 8))
        );
        assert_eq!(next_url("/x", "/items", None), None);
    }

    #[test]
    fn link_headers_are_parsed() {
        let cases = [
            ("<a>; rel=\"next\"", Some("a")),
            ("<p>; rel=\"prev\", <n>; title=\"a, b; rel=x\"; rel=\"next last\"", Some("n")),
            ("<n>; REL=Next", Some("n")),
            ("<n,1>; rel=next", Some("n,1")),
            ("<n>; rel=prev; rel=next", None),
            ("<n>; rel=nexted", None),
            ("<n>", None),
            ("<n", None),
            ("", None),
        ];
        for (header, expected) in cases {
            let found = links(header).into_iter().find(|(_, is_next)| *is_next).map(|(target, _)| target);
            assert_eq!(found.as_deref(), expected, "{header}");
        }
    }

    #[test]
    fn a_page_that_is_not_a_list_is_an_error() {
        let run =
            Call::new("t", "list").answer(Answer::get("https://api.example.com/items").json(json!({}))).run(&Plugin);
        let expected = "the upstream's response is not the expected JSON: invalid type: map, expected a sequence at line 1 column 0";
        assert_eq!(run.error(), expected);
    }
}
