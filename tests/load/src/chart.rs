//! Draws plots as SVG: lines, and stacked columns.

use std::fmt::Write;

const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 52.0;
/// The colours of lines and layers. They differ in hue and in lightness, so that they can be told
/// apart in grey, too.
const COLOURS: [&str; 8] = [
    "#0b6fb8", "#d9480f", "#2b8a3e", "#862e9c", "#c99a00", "#0c8599", "#a61e4d", "#495057",
];

/// A line through its points, sorted by `x`.
pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// The earlier run's.
    pub dashed: bool,
    /// Lines of one colour belong together.
    pub colour: usize,
}

pub struct Plot<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    pub logarithmic: bool,
    pub lines: Vec<Line>,
    pub marks: Vec<(f64, String)>,
}

/// Columns of layers: `layers[i].1[j]` is the height of layer `i` in column `j`.
pub struct Columns<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    pub names: Vec<String>,
    pub layers: Vec<(String, Vec<f64>)>,
}

impl Plot<'_> {
    pub fn svg(&self) -> String {
        let points = || {
            self.lines
                .iter()
                .flat_map(|line| line.points.iter().copied())
        };
        let drawn = |(_, y): &(f64, f64)| !self.logarithmic || *y > 0.0;
        let right = points().map(|(x, _)| x).fold(0.0, f64::max);
        let top = points().map(|(_, y)| y).fold(0.0, f64::max);
        let least = points()
            .filter(drawn)
            .map(|(_, y)| y)
            .fold(f64::INFINITY, f64::min);
        let x = Axis::linear(right, LEFT, WIDTH - RIGHT);
        let y = if self.logarithmic {
            Axis::logarithmic(least, top, HEIGHT - BOTTOM, TOP)
        } else {
            Axis::linear(top, HEIGHT - BOTTOM, TOP)
        };
        let mut svg = Svg::new(self.title, self.x, self.y);
        svg.y_axis(&y);
        for tick in &x.ticks {
            svg.text(x.at(*tick), HEIGHT - BOTTOM + 18.0, "middle", &label(*tick));
        }
        for (at, text) in &self.marks {
            let at = x.at(*at);
            svg.push(&format!(
                r##"<line x1="{at:.1}" y1="{TOP}" x2="{at:.1}" y2="{:.1}" stroke="#868e96" stroke-dasharray="2 4"/>"##,
                HEIGHT - BOTTOM
            ));
            svg.text(at + 4.0, TOP + 12.0, "start", text);
        }
        for (index, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[line.colour % COLOURS.len()];
            let dash = if line.dashed {
                r#" stroke-dasharray="6 4""#
            } else {
                ""
            };
            let visible = line.points.iter().filter(|point| drawn(point));
            let at: Vec<(f64, f64)> = visible
                .map(|point| (x.at(point.0), y.at(point.1)))
                .collect();
            let path: Vec<String> = at.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            svg.push(&format!(
                r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>"#,
                path.join(" ")
            ));
            for (x, y) in at {
                svg.push(&format!(
                    r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#
                ));
            }
            svg.legend(index, &line.name, colour, line.dashed);
        }
        svg.end()
    }
}

impl Columns<'_> {
    pub fn svg(&self) -> String {
        let height =
            |column: usize| -> f64 { self.layers.iter().map(|(_, layer)| layer[column]).sum() };
        let top = (0..self.names.len()).map(height).fold(0.0, f64::max);
        let y = Axis::linear(top, HEIGHT - BOTTOM, TOP);
        let mut svg = Svg::new(self.title, self.x, self.y);
        svg.y_axis(&y);
        let mut left = LEFT;
        let step =
            (WIDTH - RIGHT - LEFT) / f64::from(u32::try_from(self.names.len().max(1)).unwrap_or(1));
        for (column, name) in self.names.iter().enumerate() {
            let mut below = 0.0;
            for (index, (layer, heights)) in self.layers.iter().enumerate() {
                let above = below + heights[column];
                let from = y.at(below);
                let to = y.at(above);
                svg.push(&format!(
                    r#"<rect x="{:.1}" y="{to:.1}" width="{:.1}" height="{:.1}" fill="{}"><title>{}: {}</title></rect>"#,
                    left + step * 0.12,
                    step * 0.76,
                    from - to,
                    COLOURS[index % COLOURS.len()],
                    escaped(layer),
                    label(heights[column]),
                ));
                below = above;
            }
            let middle = left + step / 2.0;
            svg.text(middle, y.at(below) - 5.0, "middle", &label(below.round()));
            svg.text(middle, HEIGHT - BOTTOM + 18.0, "middle", name);
            left += step;
        }
        // The legend's order is the columns': the last layer on top.
        for (row, (index, (layer, _))) in self.layers.iter().enumerate().rev().enumerate() {
            svg.legend(row, layer, COLOURS[index % COLOURS.len()], false);
        }
        svg.end()
    }
}

/// A scale between two pixels.
struct Axis {
    logarithmic: bool,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    ticks: Vec<f64>,
}

impl Axis {
    /// From 0 to a round number of at least `high`.
    fn linear(high: f64, from: f64, to: f64) -> Self {
        let high = if high > 0.0 { high } else { 1.0 };
        let rough = high / 6.0;
        let unit = 10_f64.powf(rough.log10().floor());
        let factors = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * unit);
        let step = factors
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        let mut ticks = vec![0.0];
        while ticks.last().is_some_and(|last| *last < high) {
            ticks.push(ticks.last().unwrap_or(&0.0) + step);
        }
        Self {
            logarithmic: false,
            low: 0.0,
            high: ticks.last().copied().unwrap_or(high),
            from,
            to,
            ticks,
        }
    }

    /// From one power of ten to another.
    fn logarithmic(low: f64, high: f64, from: f64, to: f64) -> Self {
        let low = if low.is_finite() { low } else { 1.0 };
        let high = high.max(low * 1.001);
        let first = low.log10().floor();
        let last = high.log10().ceil();
        let mut ticks = Vec::new();
        let mut exponent = first;
        while exponent <= last {
            ticks.push(10_f64.powf(exponent));
            exponent += 1.0;
        }
        Self {
            logarithmic: true,
            low: first,
            high: last,
            from,
            to,
            ticks,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let value = if self.logarithmic {
            value.log10()
        } else {
            value
        };
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }
}

struct Svg(String);

impl Svg {
    fn new(title: &str, x: &str, y: &str) -> Self {
        let title = escaped(title);
        let mut svg = Self(format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" fill="#212529" role="img">
<title>{title}</title>
<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>
<text x="{LEFT}" y="22" font-size="15" font-weight="bold">{title}</text>
"##
        ));
        svg.text(
            LEFT + (WIDTH - RIGHT - LEFT) / 2.0,
            HEIGHT - 12.0,
            "middle",
            x,
        );
        let middle = TOP + (HEIGHT - BOTTOM - TOP) / 2.0;
        svg.push(&format!(
            r#"<text x="16" y="{middle:.1}" text-anchor="middle" transform="rotate(-90 16 {middle:.1})">{}</text>"#,
            escaped(y)
        ));
        svg
    }

    fn y_axis(&mut self, axis: &Axis) {
        for tick in &axis.ticks {
            let at = axis.at(*tick);
            self.push(&format!(
                r##"<line x1="{LEFT}" y1="{at:.1}" x2="{:.1}" y2="{at:.1}" stroke="#dee2e6"/>"##,
                WIDTH - RIGHT
            ));
            self.text(LEFT - 8.0, at + 4.0, "end", &label(*tick));
        }
    }

    fn legend(&mut self, row: usize, name: &str, colour: &str, dashed: bool) {
        let y = TOP + 10.0 + 20.0 * f64::from(u32::try_from(row).unwrap_or_default());
        let x = WIDTH - RIGHT + 14.0;
        let dash = if dashed {
            r#" stroke-dasharray="6 4""#
        } else {
            ""
        };
        self.push(&format!(
            r#"<line x1="{x}" y1="{y}" x2="{}" y2="{y}" stroke="{colour}" stroke-width="4"{dash}/>"#,
            x + 20.0
        ));
        self.text(x + 26.0, y + 4.0, "start", name);
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        self.push(&format!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
            escaped(text)
        ));
    }

    fn push(&mut self, element: &str) {
        // A `String` takes everything.
        let _ = writeln!(self.0, "{element}");
    }

    fn end(self) -> String {
        self.0 + "</svg>\n"
    }
}

/// At most two decimals, and thousands apart.
fn label(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    let (whole, rest) = text.find('.').map_or((text, ""), |at| text.split_at(at));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
