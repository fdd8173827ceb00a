//! Draws the QR code of `qrcode_img_url`.
//!
//! Guarantees: the path holds an activation code, which is as good as money to whoever reads it, so
//! it is never logged and the response forbids caching. Drawing is limited, because anyone can ask
//! for pictures and orders come first. With `QR_KEYS`, a picture is drawn only if its URL has the
//! MAC of this system, so that nobody can use the service to draw other codes. Until
//! `QR_BARE_UNTIL`, URLs without a MAC are accepted, too.
//!
//! [`crate::routes`] calls [`show`]. Relies on `webhooks::qr`, which makes the URLs and their
//! MAC.

use std::{net::IpAddr, num::NonZeroU32, sync::Arc, time::Duration};

use anyhow::Context;
use axum::{
    Extension,
    extract::{Path, State, rejection::PathRejection},
    http::{Uri, header},
    response::{IntoResponse, Response},
};
use domain::ActivationCode;
use fast_qr::{ECL, QRBuilder};
use webhooks::qr::QrGate;

use super::turns::{self, TurnLimits, Turns};
use crate::http::{codes::ErrorCode, connection::Connection, error::ApiError};

/// The sizes that are drawn, in pixels of one side. A larger picture would cost too much memory and
/// time.
const SIZES: std::ops::RangeInclusive<usize> = 64..=1024;
/// The blank border around the code, in modules, which the standard asks for.
pub(super) const QUIET_ZONE: usize = 4;

/// Drawing costs processor time, anyone can ask for pictures, and orders come first: one at a time,
/// and as many as take a tenth of one processor, because a picture takes a millisecond of it.
pub(crate) const DRAWING: TurnLimits = TurnLimits {
    name: "qr",
    at_once: 1,
    per_source: 8,
    per_second: NonZeroU32::new(100).unwrap(),
    wait: Duration::from_secs(1),
};

/// Draws pictures, and limits the processor time that this takes.
pub(crate) struct QrRenderer {
    gate: QrGate,
    turns: Arc<Turns>,
}

impl QrRenderer {
    /// Creates the renderer. It draws the pictures that `gate` allows, within the limits.
    pub(crate) fn new(gate: QrGate, drawing: TurnLimits) -> Arc<Self> {
        let turns = Turns::new(drawing);
        Arc::new(Self { gate, turns })
    }

    /// Runs `draw` on a thread where blocking is allowed, once it is its turn.
    async fn run<T: Send + 'static>(
        &self,
        source: IpAddr,
        draw: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = self.turns.turn(source).await?;
        let drawn = tokio::task::spawn_blocking(move || {
            let drawn = draw();
            drop(turn);
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
    connection: Option<Extension<Arc<Connection>>>,
    path: Result<Path<(String, String)>, PathRejection>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let Path((text, size)) = path.map_err(|_| ApiError::from(ErrorCode::NotFound))?;
    let code = code_of(&text)?;
    let size = size
        .parse()
        .map_err(|_| ApiError::from(ErrorCode::NotFound))?;
    let source = turns::source(connection);
    drawn(&renderer, source, &code, size, &uri).await
}

/// The activation code of a path. Only the text of our webhooks is drawn, not the other forms of a
/// code that providers send, so that each picture has one address.
fn code_of(text: &str) -> Result<ActivationCode, ApiError> {
    ActivationCode::parse(text)
        .ok()
        .filter(|code| code.download_link() == text)
        .ok_or_else(|| ErrorCode::NotFound.into())
}

async fn drawn(
    renderer: &Arc<QrRenderer>,
    source: IpAddr,
    code: &ActivationCode,
    size: usize,
    uri: &Uri,
) -> Result<Response, ApiError> {
    let now = runtime::clock::unix_seconds();
    if !SIZES.contains(&size) || !renderer.gate.lets(code, uri.query(), now) {
        return Err(ErrorCode::NotFound.into());
    }
    let text = code.download_link();
    let png = renderer
        .run(source, move || picture(&text, size))
        .await?
        .ok_or(ErrorCode::NotFound)?;
    let headers = [
        (header::CONTENT_TYPE, "image/png"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((headers, png).into_response())
}

/// Draws black modules on white, centred, and each as large as whole pixels allow. `None` if there
/// is less than one pixel for each module. The code has error correction level M, or L if the text
/// is too long for M.
fn picture(text: &str, size: usize) -> anyhow::Result<Option<Vec<u8>>> {
    let code = QRBuilder::new(text)
        .ecl(ECL::M)
        .build()
        .or_else(|_| QRBuilder::new(text).ecl(ECL::L).build())
        .context("the text does not fit into a QR code")?;
    let modules = code.size;
    let scale = size / (modules + 2 * QUIET_ZONE);
    if scale == 0 {
        return Ok(None);
    }
    let offset = size.saturating_sub(modules * scale) / 2;
    let row_bytes = size.div_ceil(8);
    // Each pixel is one bit, and the first pixel of a byte is its highest bit. 1 is white.
    let mut pixels = vec![0xff; row_bytes * size];
    for row in 0..modules {
        let first = (offset + row * scale) * row_bytes;
        let is_dark = |column: &usize| code[row][*column].value();
        for column in (0..modules).filter(is_dark) {
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
    use std::net::Ipv4Addr;

    use super::*;

    const ONE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

    /// A renderer of one picture at once.
    fn renderer(wait: Duration) -> Arc<QrRenderer> {
        let drawing = TurnLimits {
            per_second: NonZeroU32::MAX,
            wait,
            per_source: 1,
            ..DRAWING
        };
        QrRenderer::new(QrGate::default(), drawing)
    }

    /// Draws a picture that is not finished before the sender of the result is used.
    async fn unfinished(
        renderer: &Arc<QrRenderer>,
    ) -> (
        std::sync::mpsc::Sender<()>,
        tokio::task::JoinHandle<Result<(), ApiError>>,
    ) {
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (began, begun) = tokio::sync::oneshot::channel();
        let drawing = tokio::spawn({
            let renderer = Arc::clone(renderer);
            let draw = move || Ok((began.send(()), released.recv()));
            async move { renderer.run(ONE, draw).await.map(drop) }
        });
        begun.await.unwrap();
        (release, drawing)
    }

    #[tokio::test]
    async fn a_source_with_many_pictures_makes_the_others_wait_for_one() {
        let renderer = renderer(Duration::from_mins(1));
        let (release, drawing) = unfinished(&renderer).await;
        let (drawn, mut order) = tokio::sync::mpsc::unbounded_channel();
        let draw = |source| {
            let drawn = drawn.clone();
            renderer.run(source, move || Ok(drawn.send(source)?))
        };
        let flood = futures_util::future::try_join_all((0..20).map(|_| draw(ONE)));
        let other = draw(OTHER);
        let ends = async {
            tokio::task::yield_now().await;
            release.send(()).unwrap();
            Ok(())
        };
        tokio::try_join!(flood, other, ends).unwrap();
        drawing.await.unwrap().unwrap();
        let before =
            std::iter::from_fn(|| order.try_recv().ok()).position(|source| source == OTHER);
        assert!(before.unwrap() <= 1, "{before:?}");
        assert!(renderer.turns.is_idle());
    }

    #[tokio::test]
    async fn only_activation_codes_of_sane_size_are_drawn() {
        let renderer = renderer(Duration::from_secs(10));
        let draw = |text: &str, size: &str| {
            let code = code_of(text);
            let size = size
                .parse()
                .map_err(|_| ApiError::from(ErrorCode::NotFound));
            let renderer = Arc::clone(&renderer);
            async move { drawn(&renderer, ONE, &code?, size?, &Uri::from_static("/")).await }
        };
        let good = draw("LPA:1$smdp.example$AB12", "300").await.unwrap();
        assert_eq!(good.headers()["content-type"], "image/png");
        for (text, size) in [
            ("https://example.com", "300"),
            ("1$smdp.example$AB12", "300"),
            ("LPA:1$smdp.example$AB12$", "300"),
            ("LPA:1$smdp.example$AB12", "63"),
            ("LPA:1$smdp.example$AB12", "1025"),
            ("LPA:1$smdp.example$AB12", "-1"),
            ("LPA:1$smdp.example$AB12", "300px"),
        ] {
            assert!(
                matches!(
                    draw(text, size).await,
                    Err(ApiError::Plain {
                        code: ErrorCode::NotFound,
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
        let renderer = renderer(Duration::from_millis(10));
        let (release, first) = unfinished(&renderer).await;
        let second = renderer.run(OTHER, || Ok(())).await;
        assert!(matches!(
            second,
            Err(ApiError::Unavailable {
                limit_name: "qr",
                ..
            })
        ));
        release.send(()).unwrap();
        first.await.unwrap().unwrap();
        renderer.run(OTHER, || Ok(())).await.unwrap();
    }
}
