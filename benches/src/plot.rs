//! One plot, as SVG.

use std::path::Path;

use plotters::prelude::*;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A line, and its name.
pub(crate) type Line = (&'static str, Vec<(f64, f64)>);

/// The label of a point of an axis.
pub(crate) fn plain(x: f64) -> String {
    format!("{x}")
}

/// A plot with logarithmic axes.
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) x: (&'static str, fn(f64) -> String),
    pub(crate) y: &'static str,
    /// The number of a line's colour, by its name: the same in all plots.
    pub(crate) color: fn(&str) -> usize,
}

impl Plot {
    pub(crate) fn draw(&self, path: &Path, lines: &[Line]) -> Result<(), Failure> {
        let points = || {
            lines
                .iter()
                .flat_map(|line| &line.1)
                .filter(|point| point.1 > 0.0)
        };
        if points().next().is_none() {
            return Ok(());
        }
        let ends = |of: fn(&(f64, f64)) -> f64| {
            points()
                .map(of)
                .fold((f64::MAX, 0.0_f64), |(low, high), at| {
                    (low.min(at), high.max(at))
                })
        };
        let ((left, right), (low, high)) = (ends(|point| point.0), ends(|point| point.1));
        let root = SVGBackend::new(path, (960, 600)).into_drawing_area();
        root.fill(&WHITE)?;
        let (plot, legend) = root.split_horizontally(790);
        let mut chart = ChartBuilder::on(&plot)
            .caption(&self.title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d(
                (left..(right * 1.05).max(left * 2.0)).log_scale(),
                (low / 1.5..high * 1.5).log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_desc(self.x.0)
            .y_desc(self.y)
            .x_label_formatter(&|x| (self.x.1)(*x))
            .y_label_formatter(&|y| format!("{y:.0}"))
            .light_line_style(WHITE)
            .draw()?;
        for (row, (name, points)) in (0..).zip(lines) {
            let color = Palette99::pick((self.color)(name)).to_rgba();
            let points: Vec<_> = points
                .iter()
                .copied()
                .filter(|point| point.1 > 0.0)
                .collect();
            let dots = points
                .iter()
                .map(|point| Circle::new(*point, 3, color.filled()));
            chart.draw_series(LineSeries::new(
                points.iter().copied(),
                color.stroke_width(2),
            ))?;
            chart.draw_series(dots)?;
            let top = 48 + 20 * row;
            legend.draw(&Rectangle::new([(4, top), (16, top + 10)], color.filled()))?;
            legend.draw(&Text::new(*name, (24, top - 1), ("sans-serif", 15)))?;
        }
        Ok(root.present()?)
    }
}
