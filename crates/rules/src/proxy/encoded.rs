//! Encoded bodies (`Content-Encoding`): what they are when decoded.
//!
//! A body that is encoded anew has other bytes and says the same. Decoding is bounded in bytes and in memory, and a body
//! counts as decoded only if all of its bytes were read without a fault.

use std::borrow::Cow;
use std::io::Read;

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use flate2::bufread::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use ruzstd::decoding::StreamingDecoder;

/// The longest decoded body, in bytes.
pub(super) const MAX_DECODED: usize = 8 << 20;
/// Most encodings of one body.
const MAX_ENCODINGS: usize = 4;
/// The largest window of zstd: what every decoder must allow (RFC 9659).
const MAX_WINDOW: u64 = 8 << 20;

/// Bytes that are decoded at a time.
const BUFFER: usize = 16 << 10;

/// An encoding of bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

impl Encoding {
    /// `name`: in lower case.
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "gzip" | "x-gzip" => Self::Gzip,
            "deflate" => Self::Deflate,
            "br" => Self::Brotli,
            "zstd" => Self::Zstd,
            _ => return None,
        })
    }

    /// The names under which a client accepts it.
    fn names(self) -> &'static [&'static str] {
        match self {
            Self::Gzip => &["gzip", "x-gzip"],
            Self::Deflate => &["deflate"],
            Self::Brotli => &["br"],
            Self::Zstd => &["zstd"],
        }
    }

    fn decode(self, body: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Gzip => {
                let mut reader = MultiGzDecoder::new(body);
                let decoded = read(&mut reader)?;
                reader.into_inner().is_empty().then_some(decoded)
            }
            Self::Deflate => deflate(body, true).or_else(|| deflate(body, false)),
            Self::Brotli => brotli(body),
            Self::Zstd => zstd(body),
        }
    }
}

/// Reads to the end. `None`: a fault, or too many bytes.
fn read(reader: &mut impl Read) -> Option<Vec<u8>> {
    let mut decoded = Vec::new();
    let most = MAX_DECODED as u64 + 1;
    reader.take(most).read_to_end(&mut decoded).ok()?;
    (decoded.len() <= MAX_DECODED).then_some(decoded)
}

/// Reads `deflate`, with the frame that the standard demands (RFC 9110, section 8.4.1.2), or without, as some clients
/// write it.
fn deflate(body: &[u8], has_frame: bool) -> Option<Vec<u8>> {
    let mut state = Decompress::new(has_frame);
    let (mut decoded, mut buffer) = (Vec::new(), vec![0; BUFFER]);
    loop {
        let (read, before) = (state.total_in(), state.total_out());
        let rest = body.get(usize::try_from(read).ok()?..)?;
        let status = state.decompress(rest, &mut buffer, FlushDecompress::None);
        let status = status.ok()?;
        let written = usize::try_from(state.total_out() - before).ok()?;
        decoded.extend_from_slice(buffer.get(..written)?);
        let is_whole = state.total_in() == body.len() as u64;
        if decoded.len() > MAX_DECODED {
            return None;
        }
        if status == Status::StreamEnd {
            return is_whole.then_some(decoded);
        }
        // It ends too early.
        if written == 0 && state.total_in() == read {
            return None;
        }
    }
}

fn brotli(body: &[u8]) -> Option<Vec<u8>> {
    let alloc = StandardAlloc::default;
    let mut state = BrotliState::new(alloc(), alloc(), alloc());
    let (mut left, mut at, mut total) = (body.len(), 0, 0);
    let (mut decoded, mut buffer) = (Vec::new(), vec![0; BUFFER]);
    loop {
        let (mut free, mut written) = (buffer.len(), 0);
        let result = BrotliDecompressStream(
            &mut left,
            &mut at,
            body,
            &mut free,
            &mut written,
            &mut buffer,
            &mut total,
            &mut state,
        );
        decoded.extend_from_slice(buffer.get(..written)?);
        if decoded.len() > MAX_DECODED {
            return None;
        }
        match result {
            BrotliResult::ResultSuccess => return (left == 0).then_some(decoded),
            BrotliResult::NeedsMoreOutput => {}
            BrotliResult::NeedsMoreInput | BrotliResult::ResultFailure => return None,
        }
    }
}

/// All frames, one after the other.
fn zstd(mut body: &[u8]) -> Option<Vec<u8>> {
    let mut decoded = Vec::new();
    while !body.is_empty() {
        let frame = StreamingDecoder::new_with_max_window_size(&mut body, MAX_WINDOW);
        let mut frame = frame.ok()?;
        let left = MAX_DECODED - decoded.len();
        let most = left as u64 + 1;
        (&mut frame).take(most).read_to_end(&mut decoded).ok()?;
        let decoder = frame.into_frame_decoder();
        let is_whole = decoder.get_checksum_from_data().is_none()
            || decoder.get_checksum_from_data() == decoder.get_calculated_checksum();
        if decoded.len() > MAX_DECODED || !is_whole {
            return None;
        }
    }
    Some(decoded)
}

/// The encodings of a body, in the order in which they were applied. `None`: one is not known, or there are too many.
fn encodings<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Vec<Encoding>> {
    let names = headers.flat_map(|line| line.split(','));
    let names = names.map(|name| name.trim().to_ascii_lowercase());
    let names = names.filter(|name| !name.is_empty() && name != "identity");
    let named: Option<Vec<_>> = names
        .take(MAX_ENCODINGS + 1)
        .map(|name| Encoding::named(&name))
        .collect();
    named.filter(|named| named.len() <= MAX_ENCODINGS)
}

fn lines<'a>(headers: &'a [(String, String)], named: &str) -> impl Iterator<Item = &'a str> {
    let lines = headers.iter().filter(move |(name, _)| name == named);
    lines.map(|(_, value)| value.as_str())
}

/// The header with the encodings of a body.
pub(super) const CONTENT_ENCODING: &str = "content-encoding";

/// Whether a body says that it is encoded.
pub fn is_encoded(headers: &[(String, String)]) -> bool {
    lines(headers, CONTENT_ENCODING).next().is_some()
}

/// A body without its encodings. `None`: it cannot be decoded, or is too long then.
pub(super) fn decoded<'a>(headers: &[(String, String)], body: &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let mut decoded = Cow::Borrowed(body);
    for encoding in encodings(lines(headers, CONTENT_ENCODING))?.iter().rev() {
        decoded = Cow::Owned(encoding.decode(&decoded)?);
    }
    Some(decoded)
}

/// Whether a client refuses an encoding of this body, and takes it decoded (RFC 9110, section 12.5.3).
///
/// `accept`: its `Accept-Encoding`; `None`: it takes any.
pub(super) fn is_refused(headers: &[(String, String)], accept: Option<&str>) -> bool {
    let (Some(accept), Some(encodings)) = (accept, encodings(lines(headers, CONTENT_ENCODING)))
    else {
        return false;
    };
    let accepted = weights(accept);
    let weight = |names: &[&str]| {
        let own = accepted
            .iter()
            .find(|(name, _)| names.contains(&name.as_str()));
        let any = accepted.iter().find(|(name, _)| name == "*");
        own.or(any).map(|(_, is_accepted)| *is_accepted)
    };
    let takes_plain = weight(&["identity"]).unwrap_or(true);
    let takes = |encoding: &Encoding| weight(encoding.names()).unwrap_or(false);
    takes_plain && !encodings.iter().all(takes)
}

/// The encodings that a client names, and whether it takes them: its weight for them is not zero.
fn weights(accept: &str) -> Vec<(String, bool)> {
    let named = accept.split(',').map(|part| {
        let mut parts = part.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight = parts.find_map(|part| {
            let (name, weight) = part.split_once('=')?;
            let is_weight = name.trim().eq_ignore_ascii_case("q");
            is_weight.then(|| weight.trim().parse::<f32>().ok())?
        });
        (name, weight.is_none_or(|weight| weight > 0.0))
    });
    named.filter(|(name, _)| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

    fn gzip(body: &[u8]) -> Vec<u8> {
        let mut writer = GzEncoder::new(Vec::new(), Compression::best());
        writer.write_all(body).expect("written");
        writer.finish().expect("written")
    }

    fn says(encodings: &str) -> Vec<(String, String)> {
        vec![(CONTENT_ENCODING.to_owned(), encodings.to_owned())]
    }

    #[test]
    fn a_body_is_decoded_only_up_to_a_bound() {
        let most = vec![b'a'; MAX_DECODED];
        let headers = says("gzip");
        let is_decoded = |body: &[u8]| decoded(&headers, &gzip(body)).is_some();
        assert!(is_decoded(&most));
        let more = [most.as_slice(), b"a"].concat();
        assert!(!is_decoded(&more));
        // A bomb within a bomb.
        let twice = gzip(&gzip(&more));
        assert!(decoded(&says("gzip, gzip"), &twice).is_none());
        // Two frames, each within the bound.
        let two = [gzip(&most), gzip(&most)].concat();
        assert!(decoded(&headers, &two).is_none());
    }

    #[test]
    fn a_frame_that_asks_for_a_large_window_is_not_decoded() {
        // A raw block "a" in a frame whose window is 2 KiB, 8 MiB and 16 MiB.
        for (window, is_read) in [(1 << 3, true), (13 << 3, true), (14 << 3, false)] {
            let frame = [0x28, 0xb5, 0x2f, 0xfd, 0, window, 9, 0, 0, b'a'];
            let found = decoded(&says("zstd"), &frame);
            assert_eq!(
                found.as_deref(),
                is_read.then_some(b"a".as_slice()),
                "{window}"
            );
        }
    }

    #[test]
    fn bodies_of_too_many_or_unknown_encodings_are_not_decoded() {
        let five = (0..5).fold(b"a".to_vec(), |body, _| gzip(&body));
        assert!(decoded(&says("gzip,gzip,gzip,gzip,gzip"), &five).is_none());
        assert!(decoded(&says("gzip, other"), &gzip(b"a")).is_none());
        assert_eq!(
            decoded(&says(" Identity,"), b"a").as_deref(),
            Some(b"a".as_slice())
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_not(body: Vec<u8>, which in 0..4_usize) {
            let name = ["gzip", "deflate", "br", "zstd"][which];
            let found = decoded(&says(name), &body);
            prop_assert!(found.is_none_or(|found| found.len() <= MAX_DECODED));
        }

        #[test]
        fn what_was_encoded_is_found(body: Vec<u8>, rest: u8) {
            let encoded = gzip(&body);
            let found = decoded(&says("gzip"), &encoded);
            prop_assert_eq!(found.as_deref(), Some(body.as_slice()));
            let cut = &encoded[..encoded.len() - 1];
            prop_assert!(decoded(&says("gzip"), cut).is_none());
            let longer = [encoded.as_slice(), &[rest]].concat();
            prop_assert!(decoded(&says("gzip"), &longer).is_none());
        }
    }
}
