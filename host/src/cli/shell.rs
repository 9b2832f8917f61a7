//! `outboxd completions` and `outboxd man`: generated from the command line itself.

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::args::Cli;
use super::output;

pub fn completions(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "outboxd", &mut script);
    output::line(String::from_utf8_lossy(&script).trim_end());
}

/// One page with a section a command, those of `messages` and `plugin` among them.
pub fn man() -> anyhow::Result<()> {
    let mut page = Vec::new();
    let mut command = Cli::command();
    command.build();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    sections("outboxd", &command, &mut page)?;
    output::line(String::from_utf8_lossy(&page).trim_end());
    Ok(())
}

fn sections(above: &str, command: &clap::Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    for command in command.get_subcommands().filter(|command| command.get_name() != "help") {
        let name = format!("{above} {}", command.get_name());
        let man = clap_mangen::Man::new(command.clone());
        page.extend_from_slice(format!(".SH \"{}\"\n", name.to_uppercase()).as_bytes());
        man.render_description_section(page)?;
        man.render_synopsis_section(page)?;
        man.render_options_section(page)?;
        sections(&name, command, page)?;
    }
    Ok(())
}
