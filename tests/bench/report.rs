use serde::Serialize;

/// What was measured, in the order of measuring.
#[derive(Default, Serialize)]
pub struct Report {
    results: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    name: String,
    value: f64,
    unit: &'static str,
    /// What it should be, where `docs/performance.md` promises something.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'static str>,
}

impl Report {
    pub fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.push(name.into(), value, unit, None);
    }

    pub fn add_with_target(
        &mut self,
        name: impl Into<String>,
        value: f64,
        unit: &'static str,
        target: impl Into<Option<&'static str>>,
    ) {
        self.push(name.into(), value, unit, target.into());
    }

    fn push(&mut self, name: String, value: f64, unit: &'static str, target: Option<&'static str>) {
        // Told at once: a whole run takes minutes.
        eprintln!("{name}: {} {unit}", shown(value));
        self.results.push(Line { name, value, unit, target });
    }

    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and texts")
    }

    pub fn table(&self) -> String {
        let mut table = String::from("| what | measured | target |\n|---|---|---|\n");
        for Line { name, value, unit, target } in &self.results {
            table.push_str(&format!("| {name} | {} {unit} | {} |\n", shown(*value), target.unwrap_or("")));
        }
        table
    }
}

fn shown(value: f64) -> String {
    match value {
        value if value.abs() >= 100.0 => format!("{value:.0}"),
        value => format!("{value:.2}"),
    }
}

/// The middle one; of none, zero.
pub fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

/// The value that so large a share is not above; of none, zero.
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (sorted.len().saturating_sub(1) as f64 * share).round() as usize;
    sorted.get(place).copied().unwrap_or(0.0)
}
