//! What a command sees and has in a bubble.

use std::{fs, io::Read as _, net::TcpListener, os::fd::OwnedFd};

use conductor::contain::bubble::Bubble;
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use serde_json::{Value, json};

use crate::{lines, worlds};

#[test]
fn every_layer_holds_inside() {
    for world in worlds() {
        let mut guarded = world.start(
            &world.terms(),
            &format!(
                "cat {0}/secret; echo > {0}/x; unshare -U true; grep NoNewPrivs /proc/self/status",
                world.outside.display()
            ),
        );
        let held = guarded.held();
        let has = |layer: &str| held["layers"].as_array().unwrap().contains(&json!(layer));
        assert!(["landlock", "seccomp", "bwrap"].into_iter().all(has), "{held}");
        assert_eq!(held["missing"], json!([]));
        assert_eq!(guarded.line(), "NoNewPrivs:\t1", "nothing else came to anything");
        assert!(guarded.wait().success());
        assert_eq!(fs::read_dir(&world.outside).unwrap().count(), 1);
    }
}

#[test]
fn only_its_own_processes_are_there() {
    for world in worlds() {
        let told = world.run(&world.terms(), "echo $$; cd /proc; ls -d [0-9]*; tr '\\0' ' ' < 1/cmdline");
        let told = lines(&told);
        let own: u32 = told[0].parse().unwrap();
        assert!(own < 10, "{told:?}");
        let seen: Vec<u32> = told[1..].iter().map_while(|line| line.parse().ok()).collect();
        assert!(seen.len() <= 4 && seen.iter().all(|pid| *pid < 20), "{told:?}");
        assert!(told.last().unwrap().contains("bwrap"), "{told:?}");
    }
}

#[test]
fn the_network_is_cut_only_if_no_port_is_named() {
    for world in worlds() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let script = format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}' 2>&- && echo yes || echo no");
        assert_eq!(world.run(&world.terms(), &script), "yes\n");

        let mut terms = world.terms();
        terms["bubble"] = json!(Bubble::new(std::slice::from_ref(&world.root), true));
        // Landlock has no say in it here.
        assert_eq!(world.run(&terms, &script), "no\n");
        let told = world.run(&terms, "tail -n +3 /proc/net/dev | cut -d: -f1");
        assert_eq!(lines(&told).iter().map(|line| line.trim()).collect::<Vec<_>>(), ["lo"]);

        terms["ports"] = json!([]);
        terms["layers"] = json!(["landlock", "seccomp", "bwrap", "network"]);
        let mut guarded = world.start(&terms, &script);
        let held = guarded.held();
        assert!(held["layers"].as_array().unwrap().contains(&json!("network")), "{held}");
        assert_eq!(guarded.line(), "no");
    }
}

#[test]
fn the_command_starts_as_without_a_bubble() {
    for world in worlds() {
        let script = "pwd; env; echo; ls -l /proc/self/fd | grep -c 'pipe:\\|null'; cat /proc/self/status";
        let with = world.run(&world.terms(), script);
        let mut terms = world.terms();
        terms["layers"] = json!(["landlock", "seccomp"]);
        terms["bubble"] = Value::Null;
        let mut guarded = world.start(&terms, script);
        guarded.started();
        let mut without = String::new();
        guarded.stdout.read_to_string(&mut without).unwrap();
        let alike = |text: &str| -> Vec<String> {
            let is_alike = |line: &&str| {
                !line.contains(':')
                    || ["SigBlk", "SigIgn", "SigCgt", "NoNewPrivs"].contains(&line.split(':').next().unwrap())
            };
            text.lines().filter(is_alike).map(str::to_owned).collect()
        };
        assert!(with.starts_with(&format!("{}\n", world.root.display())), "{with}");
        assert_eq!(alike(&with), alike(&without));
    }
}

#[test]
fn a_command_has_three_descriptors_and_closes_them_for_all() {
    for world in worlds() {
        let script =
            "for fd in 0 1 2 3 4 5 6 7 8 9; do [ -e /proc/$$/fd/$fd ] && echo $fd; done; exec >&-; sleep 60";
        let mut guarded = world.start(&world.terms(), script);
        guarded.held();
        let mut text = String::new();
        // Comes to an end, though the command and its bubble live.
        guarded.stdout.read_to_string(&mut text).unwrap();
        assert_eq!(lines(&text), ["0", "1", "2"]);
        assert!(matches!(guarded.guard.try_wait(), Ok(None)));
    }
}

#[test]
fn a_terminal_is_the_commands_own() {
    for world in worlds() {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        let size = Winsize { ws_row: 33, ws_col: 77, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&controller, size).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap().into_string().unwrap();
        let terminal = fs::File::options().read(true).write(true).open(&name).unwrap();
        let terminal = OwnedFd::from(terminal);
        let script = "trap 'echo interrupted; exit 5' INT; tty; stty size; echo > /dev/tty; echo ready; read x; sleep 60";
        let mut guarded =
            world.start_with(&world.terms(), &["--terminal"], &["sh", "-c", script], Some(&terminal));
        drop(terminal);
        guarded.held();
        assert_eq!([guarded.line(), guarded.line(), guarded.line()], [name.as_str(), "33 77", "ready"]);
        rustix::io::write(&controller, b"\x03").unwrap();
        assert_eq!(guarded.line(), "interrupted");
        assert_eq!(guarded.wait().code(), Some(5));
    }
}
