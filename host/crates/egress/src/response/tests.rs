use super::*;

fn encoded(values: &[&str]) -> Result<Encoding, FailureCode> {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append(CONTENT_ENCODING, HeaderValue::from_str(value).unwrap());
    }
    encoding(&headers).map_err(|failure| failure.code)
}

#[test]
fn gzip_once_is_all_that_is_decoded() {
    for none in [&[][..], &[""], &["identity"], &["identity, Identity"]] {
        assert_eq!(encoded(none), Ok(Encoding::Identity), "{none:?}");
    }
    for gzip in [&["gzip"][..], &["GZIP"], &["x-gzip"], &["identity", "gzip"]] {
        assert_eq!(encoded(gzip), Ok(Encoding::Gzip), "{gzip:?}");
    }
    for other in [&["br"][..], &["deflate"], &["zstd"], &["gzip, gzip"], &["gzip", "gzip"], &["gzip, br"], &["x"]] {
        assert_eq!(encoded(other), Err(FailureCode::Protocol), "{other:?}");
    }
}

#[test]
fn chunked_is_the_only_transfer_encoding() {
    let accepted = |values: &[&str]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TRANSFER_ENCODING, HeaderValue::from_str(value).unwrap());
        }
        check_transfer_encoding(&headers).map_err(|failure| failure.code)
    };
    for values in [&[][..], &["chunked"], &["Chunked"]] {
        assert_eq!(accepted(values), Ok(()), "{values:?}");
    }
    for values in [
        &["gzip"][..],
        &["gzip, chunked"],
        &["gzip", "chunked"],
        &["chunked", "chunked"],
        &["chunked, chunked"],
        &["identity"],
        &["chunked;a=b"],
        &["x-chunked"],
        &[""],
    ] {
        assert_eq!(accepted(values), Err(FailureCode::Protocol), "{values:?}");
    }
}

#[test]
fn the_limit_applies_to_the_decoded_body() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&[0; 2 << 20]).unwrap();
    let packed = encoder.finish().unwrap();
    for (encoding, bytes) in [(Encoding::Identity, [0; 2 << 20].as_slice()), (Encoding::Gzip, &packed)] {
        let read = |bytes_max| {
            let mut body = Body::new(encoding, bytes_max);
            body.push(bytes).and_then(|()| body.finish()).map_err(|failure| failure.message)
        };
        assert_eq!(read(2 << 20).map(|body| body.len()), Ok(2 << 20), "{encoding:?}");
        assert_eq!(read(1 << 20), Err("the response is larger than 1 MiB".to_owned()), "{encoding:?}");
    }
}

#[test]
fn retry_after_is_read_for_two_statuses() {
    // 1994-11-06 08:49:37
    let now = UtcMillis(784_111_777_000);
    let wait = |status, value: &'static str| {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]);
        retry_after_ms(status, &headers, now)
    };
    assert_eq!(wait(StatusCode::OK, "2"), None);
    assert_eq!(wait(StatusCode::SERVICE_UNAVAILABLE, "2"), Some(2000));
    for (value, expected) in [
        ("2", Some(2000)),
        (" 0 ", Some(0)),
        ("99999999", Some(u32::MAX)),
        ("99999999999999999999", Some(u32::MAX)),
        ("Sun, 06 Nov 1994 08:49:40 GMT", Some(3000)),
        ("Sunday, 06-Nov-94 08:49:40 GMT", Some(3000)),
        ("Sun Nov  6 08:49:40 1994", Some(3000)),
        ("Sun, 06 Nov 1994 08:49:36 GMT", Some(0)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", Some(u32::MAX)),
        ("Sun, 06 Nov 1994 08:49:40", None),
        ("soon", None),
        ("-1", None),
        ("+1", None),
        ("1.5", None),
        ("", None),
    ] {
        assert_eq!(wait(StatusCode::TOO_MANY_REQUESTS, value), expected, "{value:?}");
    }
}
