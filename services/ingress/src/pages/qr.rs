//! Draws the QR code of `qrcode_img_url`.
//!
//! Guarantees: the path holds an activation code, which is as good as money to whoever reads it, so
//! it is never logged and the response forbids caching. Drawing is limited, because anyone can ask
//! for pictures and orders come first. With `QR_KEYS`, a picture is drawn only if its URL has the
//! MAC of this system, so that nobody can use the service to draw other codes. Until
//! `QR_BARE_UNTIL`, URLs without a MAC are accepted, too.
//!
//! [`crate::http::routes`] calls [`show`]. Relies on `webhooks::qr`, which makes the URLs and their
//! MAC.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use anyhow::Context;
use axum::{
    extract::{Path, State, rejection::PathRejection},
    http::{Uri, header},
    response::{IntoResponse, Response},
};
use domain::ActivationCode;
use governor::{DefaultDirectRateLimiter, Quota};
use qrcode::{Color, EcLevel, QrCode, bits::encode_auto};
use tokio::sync::Semaphore;
use webhooks::qr::QrGate;

use crate::http::{codes::Code, error::ApiError};

/// The sizes that are drawn, in pixels of one side. A larger picture would cost too much memory and
/// time.
const SIZES: std::ops::RangeInclusive<usize> = 64..=1024;
/// The blank border around the code, in modules, which the standard asks for.
const QUIET_ZONE: usize = 4;

/// Draws pictures, and limits the processor time that this takes.
pub(crate) struct QrRenderer {
    gate: QrGate,
    permits: Arc<Semaphore>,
    rate: DefaultDirectRateLimiter,
    wait: Duration,
}

impl QrRenderer {
    /// Creates the renderer. It draws the pictures that `gate` allows, at most `concurrency` at
    /// once and `per_second` per second. A request waits at most `wait` for its turn.
    pub(crate) fn new(
        gate: QrGate,
        concurrency: u16,
        per_second: NonZeroU32,
        wait: Duration,
    ) -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(concurrency.into()));
        let rate = DefaultDirectRateLimiter::direct(Quota::per_second(per_second));
        Arc::new(Self {
            gate,
            permits,
            rate,
            wait,
        })
    }

    /// Runs `draw` on a thread where blocking is allowed, or returns a 503 after `wait`. A request
    /// beyond the limits waits instead of being refused at once. That slows a flood down, because
    /// each of its connections must wait for its answer, and a waiting connection costs almost
    /// nothing.
    async fn run<T: Send + 'static>(
        &self,
        draw: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    ) -> Result<T, ApiError> {
        let admission = async {
            let permit = Arc::clone(&self.permits).acquire_owned().await;
            self.rate.until_ready().await;
            permit
        };
        let Ok(Ok(permit)) = tokio::time::timeout(self.wait, admission).await else {
            return Err(ApiError::overloaded("qr"));
        };
        let drawn = tokio::task::spawn_blocking(move || {
            let drawn = draw();
            drop(permit);
            drawn
        });
        drawn
            .await
            .context("the picture's thread panicked")
            .flatten()
            .map_err(ApiError::Internal)
    }
}

/// `GET /qr/<percent-encoded LPA text>/<size>`: a square PNG of `size` pixels.
///
/// A request gets a 404 if its text is not an activation code, if the size is outside of 64 to 1024
/// or too small for the length of the code, and, with `QR_KEYS`, if the MAC is wrong or missing.
pub(crate) async fn show(
    State(renderer): State<Arc<QrRenderer>>,
    path: Result<Path<(String, String)>, PathRejection>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let Path((text, size)) = path.map_err(|_| ApiError::from(Code::NotFound))?;
    let code = ActivationCode::parse(&text).map_err(|_| ApiError::from(Code::NotFound))?;
    let size: usize = size.parse().map_err(|_| ApiError::from(Code::NotFound))?;
    if !SIZES.contains(&size)
        || !renderer
            .gate
            .lets(&code, uri.query(), runtime::clock::unix_seconds())
    {
        return Err(Code::NotFound.into());
    }
    let png = renderer
        .run(move || picture(&code.download_link(), size))
        .await?
        .ok_or(Code::NotFound)?;
    let headers = [
        (header::CONTENT_TYPE, "image/png"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((headers, png).into_response())
}

/// Draws black modules on white, centred, and each as large as whole pixels allow. `None` if there
/// is less than one pixel for each module. The code has error correction level M, or L if the text
/// is too long for M.
fn picture(text: &str, size: usize) -> anyhow::Result<Option<Vec<u8>>> {
    let text = text.as_bytes();
    let (bits, level) = encode_auto(text, EcLevel::M)
        .map(|bits| (bits, EcLevel::M))
        .or_else(|_| encode_auto(text, EcLevel::L).map(|bits| (bits, EcLevel::L)))
        .context("the text does not fit into a QR code")?;
    // The size is checked before the costly part, which is to compute the code.
    let modules = usize::try_from(bits.version().width())?;
    let scale = size / (modules + 2 * QUIET_ZONE);
    if scale == 0 {
        return Ok(None);
    }
    let colors = QrCode::with_bits(bits, level)?.to_colors();
    let offset = size.saturating_sub(modules * scale) / 2;
    let row_bytes = size.div_ceil(8);
    // Each pixel is one bit, and the first pixel of a byte is its highest bit. 1 is white.
    let mut pixels = vec![0xff; row_bytes * size];
    for (row, modules) in colors.chunks(modules).enumerate() {
        let first = (offset + row * scale) * row_bytes;
        let columns = modules.iter().enumerate();
        for (column, _) in columns.filter(|(_, color)| **color == Color::Dark) {
            let left = offset + column * scale;
            for x in left..left + scale {
                pixels[first + x / 8] &= !(0x80 >> (x % 8));
            }
        }
        for copy in 1..scale {
            pixels.copy_within(first..first + row_bytes, first + copy * row_bytes);
        }
    }
    let mut png = Vec::new();
    let side = u32::try_from(size)?;
    let mut encoder = png::Encoder::new(&mut png, side, side);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::One);
    encoder.set_compression(png::Compression::Fast);
    encoder.write_header()?.write_image_data(&pixels)?;
    Ok(Some(png))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_activation_codes_of_sane_size_are_drawn() {
        let renderer = QrRenderer::new(
            QrGate::default(),
            1,
            NonZeroU32::MAX,
            Duration::from_secs(10),
        );
        let draw = |text: &str, size: &str| {
            let path = Path((text.to_owned(), size.to_owned()));
            show(
                State(Arc::clone(&renderer)),
                Ok(path),
                Uri::from_static("/"),
            )
        };
        let good = draw("LPA:1$smdp.example$AB12", "300").await.unwrap();
        assert_eq!(good.headers()["content-type"], "image/png");
        assert_eq!(good.headers()["cache-control"], "no-store");
        for (text, size) in [
            ("https://example.com", "300"),
            ("LPA:1$smdp.example$AB12", "63"),
            ("LPA:1$smdp.example$AB12", "1025"),
            ("LPA:1$smdp.example$AB12", "-1"),
            ("LPA:1$smdp.example$AB12", "300px"),
        ] {
            assert!(
                matches!(
                    draw(text, size).await,
                    Err(ApiError::Plain {
                        code: Code::NotFound,
                        ..
                    })
                ),
                "{text} {size}"
            );
        }
    }

    #[test]
    fn the_longest_activation_code_is_drawn_whole_or_not_at_all() {
        let longest = ActivationCode::new(&"a".repeat(253), &"A".repeat(255)).unwrap();
        assert!(picture(&longest.download_link(), 1024).unwrap().is_some());
        assert!(picture(&longest.download_link(), 64).unwrap().is_none());
    }

    #[tokio::test]
    async fn a_picture_that_waits_too_long_is_refused() {
        let renderer = QrRenderer::new(
            QrGate::default(),
            1,
            NonZeroU32::MAX,
            Duration::from_millis(10),
        );
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (began, begun) = tokio::sync::oneshot::channel();
        let first = tokio::spawn({
            let renderer = Arc::clone(&renderer);
            let draw = move || Ok((began.send(()), released.recv()));
            async move { renderer.run(draw).await.map(drop) }
        });
        begun.await.unwrap();
        let second = renderer.run(|| Ok(())).await;
        assert!(matches!(
            second,
            Err(ApiError::Unavailable { bound: "qr", .. })
        ));
        release.send(()).unwrap();
        first.await.unwrap().unwrap();
        renderer.run(|| Ok(())).await.unwrap();
    }
}
