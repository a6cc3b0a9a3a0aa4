//! Compression of transfers of files and trees with gzip.

use std::io::{self, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use flate2::Compression;
use flate2::write::{GzEncoder, MultiGzDecoder};
use futures_util::Stream;
use hyper::HeaderMap;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use ringfence_proto::code::{Code, Failure};

use crate::slices::{ByteSource, SLICE_BYTES};

/// Number of compressed bytes in one step. Deflate expands one byte to at most 1032 bytes, so the
/// output of a step is bounded, whatever the client sent.
const STEP_BYTES: usize = 1 << 10;

/// Returns true if the client accepts a gzip reply.
pub(crate) fn is_accepted(headers: &HeaderMap) -> bool {
    let values =
        headers.get_all(ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|choice| {
        let (coding, weight) = choice.split_once(';').unwrap_or((choice, "q=1"));
        let weight = weight.trim().strip_prefix("q=").and_then(|text| text.parse::<f32>().ok());
        coding.trim().eq_ignore_ascii_case("gzip") && weight.is_none_or(|weight| weight > 0.0)
    })
}

/// Returns true if the body of the request is compressed with gzip.
pub(crate) fn is_sent(headers: &HeaderMap) -> Result<bool, Failure> {
    let Some(value) = headers.get(CONTENT_ENCODING) else { return Ok(false) };
    match value.to_str().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
        "" | "identity" => Ok(false),
        "gzip" => Ok(true),
        other => {
            let message =
                format!("the content encoding `{other}` is not understood; send `gzip`, or none");
            Err(Failure::new(Code::InvalidArgument, message))
        }
    }
}

/// Source that compresses the bytes of another source.
pub(crate) struct GzipEncoder<S> {
    source: S,
    encoder: Option<GzEncoder<Vec<u8>>>,
    slice: Vec<u8>,
}

impl<S: ByteSource> GzipEncoder<S> {
    /// Creates a compressor. `first` is what was read from the source already.
    pub(crate) fn new(first: &[u8], source: S) -> io::Result<GzipEncoder<S>> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(first)?;
        Ok(GzipEncoder { source, encoder: Some(encoder), slice: Vec::new() })
    }
}

impl<S: ByteSource> ByteSource for GzipEncoder<S> {
    fn fill(&mut self, slice: &mut Vec<u8>) -> io::Result<()> {
        // The encoder can buffer its whole input. Continue until there is output, because an empty
        // slice means the end.
        while slice.is_empty() {
            let Some(mut encoder) = self.encoder.take() else { return Ok(()) };
            self.slice.clear();
            self.source.fill(&mut self.slice)?;
            if self.slice.is_empty() {
                slice.append(&mut encoder.finish()?);
                return Ok(());
            }
            encoder.write_all(&self.slice)?;
            if self.slice.len() < SLICE_BYTES {
                // The source has no more bytes now. The client may wait for those that it has.
                encoder.flush()?;
            }
            slice.append(encoder.get_mut());
            self.encoder = Some(encoder);
        }
        Ok(())
    }
}

/// Stream that decompresses another stream.
pub(crate) struct GzipDecoder<S> {
    stream: S,
    compressed: Bytes,
    decoder: Option<MultiGzDecoder<Vec<u8>>>,
}

impl<S> GzipDecoder<S> {
    /// Creates a decompressor for a stream.
    pub(crate) fn new(stream: S) -> GzipDecoder<S> {
        GzipDecoder {
            stream,
            compressed: Bytes::new(),
            decoder: Some(MultiGzDecoder::new(Vec::new())),
        }
    }
}

impl<S: Stream<Item = io::Result<Bytes>> + Unpin> Stream for GzipDecoder<S> {
    type Item = io::Result<Bytes>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Bytes>>> {
        loop {
            let this = &mut *self;
            let Some(decoder) = &mut this.decoder else { return Poll::Ready(None) };
            if this.compressed.is_empty() {
                match ready!(Pin::new(&mut this.stream).poll_next(context)) {
                    Some(bytes) => this.compressed = bytes?,
                    None => {
                        let rest = this
                            .decoder
                            .take()
                            .map(MultiGzDecoder::finish)
                            .transpose()?
                            .unwrap_or_default();
                        return Poll::Ready((!rest.is_empty()).then(|| Ok(rest.into())));
                    }
                }
                continue;
            }
            let step = this.compressed.len().min(STEP_BYTES);
            decoder.write_all(&this.compressed[..step])?;
            this.compressed.advance(step);
            if !decoder.get_ref().is_empty() {
                return Poll::Ready(Some(Ok(std::mem::take(decoder.get_mut()).into())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt as _, TryStreamExt as _, stream};

    use super::*;

    struct TextSource(Vec<&'static [u8]>);

    impl ByteSource for TextSource {
        fn fill(&mut self, slice: &mut Vec<u8>) -> io::Result<()> {
            slice.extend_from_slice(self.0.pop().unwrap_or_default());
            Ok(())
        }
    }

    fn compressed() -> Vec<u8> {
        let mut source = GzipEncoder::new(b"first ", TextSource(vec![b"third", b"second "]))
            .expect("compresses");
        let mut all = Vec::new();
        loop {
            let mut slice = Vec::new();
            source.fill(&mut slice).expect("compresses");
            if slice.is_empty() {
                return all;
            }
            all.extend(slice);
        }
    }

    async fn inflated(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let pieces: Vec<_> =
            bytes.chunks(7).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        GzipDecoder::new(stream::iter(pieces)).map_ok(|bytes| bytes.to_vec()).try_concat().await
    }

    #[tokio::test]
    async fn compressed_bytes_decompress_to_the_original() {
        assert_eq!(inflated(&compressed()).await.expect("decompresses"), b"first second third");
    }

    #[tokio::test]
    async fn a_truncated_or_damaged_stream_is_an_error() {
        let good = compressed();
        assert!(inflated(&good[..good.len() - 3]).await.is_err());
        assert!(inflated(b"this is not compressed").await.is_err());
        assert!(inflated(b"").await.is_err());
    }

    #[tokio::test]
    async fn a_decompression_bomb_is_read_in_small_steps() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&vec![0; 64 << 20]).expect("compresses");
        let bomb = Bytes::from(encoder.finish().expect("compresses"));
        let mut stream = GzipDecoder::new(stream::iter([Ok(bomb)]));
        let mut total = 0;
        while let Some(bytes) = stream.next().await {
            let length = bytes.expect("decompresses").len();
            assert!(length < 2 << 20, "a step of {length} bytes");
            total += length;
        }
        assert_eq!(total, 64 << 20);
    }

    #[test]
    fn accepted_encodings_are_read_from_the_headers() {
        let accepts = |text: &str| {
            is_accepted(&HeaderMap::from_iter([(ACCEPT_ENCODING, text.parse().expect("is text"))]))
        };
        assert!(accepts("gzip"));
        assert!(accepts("br, GZIP;q=0.5"));
        assert!(!accepts("gzip;q=0, identity"));
        assert!(!accepts("br"));
        assert!(!is_accepted(&HeaderMap::new()));
    }
}
