//! The demo's picture: throughput over transfer size, one panel per direction and alignment.

use super::table::Row;
use crate::failure::{Failure, Outcome};
use plotters::prelude::*;
use std::path::Path;

/// Draws `rows` as SVG to `path`.
pub fn draw(rows: &[Row], path: &Path) -> Outcome {
    try_draw(rows, path).map_err(|e| Failure::broken(format!("cannot draw {}: {e}", path.display())))
}

fn try_draw(rows: &[Row], path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, (1100, 760)).into_drawing_area();
    root.fill(&WHITE)?;
    let panels = root.split_evenly((2, 2));
    for (panel, (write, unaligned)) in panels.iter().zip([(true, false), (true, true), (false, false), (false, true)]) {
        let rows: Vec<&Row> = rows.iter().filter(|r| r.write == write && r.unaligned == unaligned).collect();
        let top =
            rows.iter().flat_map(|r| r.modes.into_iter().chain([r.raw.0, r.raw.1.unwrap_or(0.0)])).fold(1.0, f64::max);
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else { continue };
        let title = format!(
            "{}, {}",
            if write { "write + fsync" } else { "cold read" },
            if unaligned { "unaligned by 8 bytes" } else { "aligned" }
        );
        let mut chart = ChartBuilder::on(panel)
            .caption(title, ("sans-serif", 18))
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(56)
            .build_cartesian_2d(
                (first.transfer as f64..last.transfer as f64).log_scale(),
                (10.0..top * 1.2).log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_labels(8)
            .x_label_formatter(&|x| crate::size::show(*x as u64))
            .y_desc("MiB/s")
            .light_line_style(WHITE)
            .draw()?;
        let raw_direct = rows.iter().all(|r| r.raw.1.is_some());
        type Value = fn(&Row) -> f64;
        let mut series: Vec<(&str, RGBColor, u32, Value)> = vec![
            ("raw folder, buffered", RGBColor(190, 190, 190), 1, |r| r.raw.0),
            ("buffered", RGBColor(31, 119, 180), 2, |r| r.modes[0]),
            ("direct", RGBColor(214, 39, 40), 2, |r| r.modes[1]),
            ("auto", RGBColor(44, 160, 44), 3, |r| r.modes[2]),
        ];
        if raw_direct {
            series.insert(1, ("raw folder, O_DIRECT", RGBColor(120, 120, 120), 1, |r| r.raw.1.unwrap_or(0.0)));
        }
        for (name, color, width, value) in series {
            let points = rows.iter().map(|r| (r.transfer as f64, value(r)));
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(width)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(width)));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .position(SeriesLabelPosition::LowerRight)
            .label_font(("sans-serif", 12))
            .draw()?;
    }
    root.present()?;
    Ok(())
}
