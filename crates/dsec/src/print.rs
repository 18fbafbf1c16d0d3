//! What goes to stdout: tables for people, JSON for programs, progress only on a terminal.

use std::{
    io::{IsTerminal, Write},
    time::Duration,
};

use comfy_table::{ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// One line on stdout.
pub(crate) fn line(text: impl std::fmt::Display) -> std::io::Result<()> {
    writeln!(std::io::stdout().lock(), "{text}")
}

/// One JSON value on a line of its own.
pub(crate) fn json(value: &impl Serialize) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    std::io::stdout().lock().write_all(&text)
}

/// JSON for a person.
pub(crate) fn json_pretty(value: &impl Serialize) -> std::io::Result<()> {
    line(serde_json::to_string_pretty(value)?)
}

/// A table without rules, as wide as the terminal, or as it needs where there is none.
pub(crate) fn table<const N: usize>(
    head: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> std::io::Result<()> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    if std::io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    table.set_header(head);
    rows.into_iter().for_each(|row| {
        table.add_row(row.map(|cell| plain(&cell)));
    });
    // The last column's padding is of no use.
    table.to_string().lines().try_for_each(|text| line(text.trim_end()))
}

/// Names come from callers: nothing in them may drive the terminal.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// `-` for nothing.
pub(crate) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".into())
}

/// A spinner on a terminal's stderr; invisible elsewhere, and with `--json`.
pub(crate) fn spinner(message: impl Into<String>, json: bool) -> ProgressBar {
    if json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_message(message.into());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// A bar of bytes, where the total is known; else a counter.
pub(crate) fn bytes_bar(total: Option<u64>, message: impl Into<String>, json: bool) -> ProgressBar {
    if json || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match total {
        Some(total) => (
            ProgressBar::new(total),
            "{msg} [{bar:30}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}",
        ),
        None => (ProgressBar::new_spinner(), "{spinner} {msg} {binary_bytes} {binary_bytes_per_sec}"),
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style).with_message(message.into())
}
