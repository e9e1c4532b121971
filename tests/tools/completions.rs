//! completions and man: made from the command line that there is, and taken by what they are for.

use std::process::Command;

use crate::harness::BINARY;
use crate::setup::tool;

/// The subcommands that `--help` lists.
fn subcommands() -> Vec<String> {
    let (_, help, _) = tool(&["--help"]);
    let list = help.split("Commands:\n").nth(1).unwrap();
    let names = list.lines().take_while(|line| !line.is_empty());
    let names = names.filter(|line| !line.starts_with("   "));
    let names: Vec<String> = names
        .filter_map(|line| line.split_whitespace().next().map(ToOwned::to_owned))
        .filter(|name| name != "help")
        .collect();
    assert!(
        names.len() >= 9 && names.iter().any(|name| name == "serve"),
        "{help}"
    );
    names
}

#[test]
fn completions_name_every_subcommand_and_bash_takes_them() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, err) = tool(&["completions", shell]);
        assert_eq!((code, err.as_str()), (0, ""));
        for name in subcommands() {
            assert!(script.contains(&name), "{shell}: {name}");
        }
        assert!(script.contains("data-dir"), "{shell}");
    }
    let (_, script, _) = tool(&["completions", "bash"]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("script");
    std::fs::write(&path, &script).unwrap();
    let parsed = Command::new("bash").arg("-n").arg(&path).output().unwrap();
    assert!(
        parsed.status.success() && parsed.stderr.is_empty(),
        "{parsed:?}"
    );
    // It completes.
    let asked = "source \"$0\"; function=$(complete -p mini-broker | sed 's/.* -F \\([^ ]*\\) .*/\\1/'); \
                 COMP_WORDS=(mini-broker ver); COMP_CWORD=1; $function mini-broker ver mini-broker; echo \"${COMPREPLY[@]}\"";
    let asked = Command::new("bash").args(["-c", asked]).arg(&path).output();
    assert_eq!(asked.unwrap().stdout, b"verify\n");
    let (code, _, err) = tool(&["completions", "cmd"]);
    assert!(code == 2 && err.contains("bash, zsh, fish"), "{err}");
}

#[test]
fn the_manual_has_a_page_for_each_subcommand() {
    let (code, page, err) = tool(&["man"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(page.contains(".TH mini-broker 1"), "{page}");
    for name in subcommands() {
        assert!(
            page.contains(&format!("mini\\-broker\\-{name}(1)")),
            "{name}: {page}"
        );
        let (code, page, _) = tool(&["man", &name]);
        assert_eq!(code, 0);
        assert!(
            page.contains(&format!(".TH mini-broker-{name} 1")),
            "{page}"
        );
    }
    let (code, _, err) = tool(&["man", "nothing"]);
    assert!(code == 2 && err.contains("serve, import"), "{err}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let piped = format!("{BINARY} completions zsh | true; echo ${{PIPESTATUS[0]}}");
    let output = Command::new("bash").args(["-c", &piped]).output().unwrap();
    assert_eq!(
        (output.stdout, output.stderr),
        (b"0\n".to_vec(), Vec::new())
    );
}
