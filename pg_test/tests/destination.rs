//! Each behaviour of the destination as a plain client sees it, and what the destination says it did.

use std::io::ErrorKind;
use std::time::Duration;

use pg_test::http::{Connection, Response, get, post_json};
use pg_test::prelude::*;

fn post(destination: &Destination, reference: &str) -> std::io::Result<Response> {
    post_json(&destination.url("/records"), &json!({ "reference": reference }))
}

fn search(destination: &Destination, reference: &str) -> Value {
    get(&destination.url(&format!("/records?reference={reference}"))).expect("answers").json()
}

#[test]
fn a_plain_destination_makes_a_record_per_write_and_keeps_the_exact_bytes() {
    let erp = Destination::start(Profile::Plain);
    let mut client = Connection::open(&erp.url("/")).expect("connects");
    let body = b"{ \"reference\":\"a\", \"n\": 1.10 }";
    for _ in 0..2 {
        let answer = client.call("POST", "/records?x=1", &[("X-Context", "company-1")], body).expect("answers");
        assert_eq!(answer.status, 201);
    }
    assert_eq!((erp.effects(), erp.effects_for("a"), erp.effects_for("b")), (2, 2, 0));
    let seen = erp.wait_for_request(2);
    assert_eq!((seen.method.as_str(), seen.target.as_str(), seen.path()), ("POST", "/records?x=1", "/records"));
    assert_eq!(seen.header("x-context"), Some("company-1"));
    assert_eq!(seen.body, body);
    // Both came over one connection that was kept alive.
    assert_eq!((seen.connection, erp.connections()), (1, 1));
    assert!(erp.requests()[0].arrived <= seen.arrived);
}

#[test]
fn the_script_comes_first_then_the_default() {
    let erp = Destination::start(Profile::Plain);
    erp.next(answer(503, json!({})).header("Retry-After", "7").then(answer(429, json!({})).times(2)).then(accept()));
    erp.otherwise(answer(500, json!({ "error": "broken" })));
    let answers: Vec<Response> = (0..5).map(|_| post(&erp, "a").expect("answers")).collect();
    assert_eq!(answers.iter().map(|a| a.status).collect::<Vec<_>>(), [503, 429, 429, 201, 500]);
    assert_eq!(pg_test::http::header(&answers[0].headers, "retry-after"), Some("7"));
    assert_eq!(erp.effects(), 1);
    erp.otherwise_by(|request, nth| answer(200, json!({ "nth": nth, "path": request.path() })));
    assert_eq!(post(&erp, "a").expect("answers").json(), json!({ "nth": 6, "path": "/records" }));
}

#[test]
fn an_answer_lost_after_the_commit_leaves_a_record_and_one_before_does_not() {
    let erp = Destination::start(Profile::Plain);
    for (behaviour, effects) in [
        (drop_before_commit(), 0),
        (drop_after_commit(), 1),
        (reset(), 1),
        (reset().after_commit(), 2),
        (answer(500, json!({})).after_commit(), 3),
    ] {
        erp.next(behaviour.clone());
        let answer = post(&erp, "a");
        assert_eq!(answer.is_ok(), effects == 3, "{behaviour:?}");
        assert_eq!(erp.effects(), effects, "{behaviour:?}");
    }
    assert_eq!(erp.requests().len(), 5);
}

#[test]
fn a_reset_is_seen_as_a_reset_and_a_close_as_an_end() {
    let erp = Destination::start(Profile::Plain);
    erp.next(reset().then(drop_before_commit()));
    assert_eq!(post(&erp, "a").expect_err("reset").kind(), ErrorKind::ConnectionReset);
    assert_eq!(post(&erp, "a").expect_err("closed").kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn an_answer_can_break_off_in_its_body() {
    let erp = Destination::start(Profile::Plain);
    erp.next(reset_mid_body());
    let mut client = Connection::open(&erp.url("/")).expect("connects");
    let error = client.call("POST", "/records", &[], b"{\"reference\":\"a\"}").expect_err("breaks off");
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof), "{error}");
    assert_eq!(erp.effects_for("a"), 1);
}

#[test]
fn raw_answers_arrive_as_they_are() {
    let erp = Destination::start(Profile::Plain);
    erp.next(answer_raw(b"HTTP/1.1 204 No\r\n\r\n").then(answer_raw(b"garbage\r\n\r\n")));
    erp.next(answer_text(200, "text/html", "<html>"));
    assert_eq!(post(&erp, "a").expect("answers").status, 204);
    assert_eq!(post(&erp, "a").expect_err("no status line").kind(), ErrorKind::InvalidData);
    assert_eq!(post(&erp, "a").expect("answers").body, b"<html>");
}

#[test]
fn a_held_request_answers_late_and_a_hanging_one_never() {
    let erp = Destination::start(Profile::Plain);
    erp.next(hang_after_commit().then(hang()));
    let mut clients: Vec<Connection> = (0..2).map(|_| Connection::open(&erp.url("/")).expect("connects")).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        client.send("POST", "/records", &[], format!("{{\"reference\":\"{i}\"}}").as_bytes()).expect("sends");
        erp.wait_for_held(i + 1);
    }
    assert_eq!((erp.in_flight(), erp.effects_for("0"), erp.effects_for("1")), (2, 1, 0));
    clients[0].set_timeout(Duration::from_millis(50)).expect("sets");
    assert!(clients[0].receive().is_err(), "silence until released");
    clients[0].set_timeout(Duration::from_secs(30)).expect("sets");
    erp.release();
    assert_eq!(clients[0].receive().expect("late").status, 201);
    assert_eq!(clients[1].receive().expect_err("closed").kind(), ErrorKind::UnexpectedEof);
    assert_eq!((erp.effects_for("1"), erp.in_flight(), erp.peak_in_flight()), (0, 0, 2));
}

#[test]
fn a_request_whose_client_left_is_not_in_flight() {
    let erp = Destination::start(Profile::Plain);
    erp.next(hang_after_commit());
    let mut client = Connection::open(&erp.url("/")).expect("connects");
    client.send("POST", "/records", &[], b"{}").expect("sends");
    erp.wait_for_held(1);
    drop(client);
    let gone = (0..1_000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        erp.in_flight() == 0
    });
    assert!(gone, "still counted");
    erp.release();
}

#[test]
fn slow_bodies_arrive_whole_and_endless_ones_never_end() {
    let erp = Destination::start(Profile::Plain);
    erp.next(slow_body(1).then(endless_body()));
    assert_eq!(post(&erp, "a").expect("answers").json()["reference"], "a");
    let mut client = Connection::open(&erp.url("/")).expect("connects");
    client.send("POST", "/records", &[], b"{\"reference\":\"b\"}").expect("sends");
    let endless = client.receive();
    // The client of the harness stops reading at 64 MiB.
    assert_eq!(endless.expect("answers").body.len(), 64 * 1024 * 1024);
    assert_eq!(erp.effects_for("b"), 1);
}

#[test]
fn unread_resets_are_counted_apart_from_requests() {
    let erp = Destination::start(Profile::Plain);
    erp.reset_unread(1);
    assert!(post(&erp, "a").is_err());
    assert_eq!((erp.requests().len(), erp.unread_resets(), erp.effects()), (0, 1, 0));
    erp.reset_unread_every(Some(3));
    let answered: Vec<bool> = (0..6).map(|_| post(&erp, "a").is_ok()).collect();
    // Arrivals 2 to 7: the third and the sixth are reset.
    assert_eq!(answered, [true, false, true, true, false, true]);
    assert_eq!((erp.requests().len(), erp.unread_resets()), (4, 3));
}

#[test]
fn a_deduplicating_destination_replays_its_first_answer_until_the_window_ends() {
    let erp = Destination::start(Profile::deduplicating("Idempotency-Key"));
    let mut client = Connection::open(&erp.url("/")).expect("connects");
    let mut call = |key: &str, body: &str| {
        client.call("POST", "/records", &[("idempotency-key", key)], body.as_bytes()).expect("answers")
    };
    let first = call("k1", "{\"n\":1}");
    assert_eq!(call("k1", "{\"n\":1}"), first);
    assert_eq!(call("k1", "{\"n\":2}").status, 422);
    assert_ne!(call("k2", "{\"n\":1}"), first);
    assert_eq!((erp.effects(), erp.effects_for("k1")), (2, 1));
    let over = Some(Duration::ZERO);
    erp.set_profile(Profile::Deduplicating { header: "Idempotency-Key".to_owned(), window: over });
    assert_ne!(call("k1", "{\"n\":1}"), first);
    assert_eq!(erp.effects_for("k1"), 2);
}

#[test]
fn a_unique_reference_is_refused_the_second_time() {
    let erp = Destination::start(Profile::unique_reference("reference"));
    assert_eq!(post(&erp, "a").expect("answers").status, 201);
    let refused = post(&erp, "a").expect("answers");
    assert_eq!((refused.status, refused.json()), (409, json!({ "code": "NOT_UNIQUE" })));
    assert_eq!(post(&erp, "b").expect("answers").status, 201);
    assert_eq!(erp.effects(), 2);
    let body = json!({ "error": "exists" });
    erp.set_profile(Profile::UniqueReference { field: "reference".to_owned(), status: 400, body });
    assert_eq!(post(&erp, "b").expect("answers").status, 400);
}

#[test]
fn forms_have_references_too() {
    let erp = Destination::start(Profile::Plain);
    let mut client = Connection::open(&erp.url("/")).expect("connects");
    client.call("POST", "/records", &[], b"x=1&reference=a%2Fb+c").expect("answers");
    assert_eq!(erp.effects_for("a/b c"), 1);
}

#[test]
fn searches_answer_the_way_real_systems_do() {
    let erp = Destination::start(Profile::Plain);
    for reference in ["order-1", "order-10", "other"] {
        post(&erp, reference).expect("answers");
    }
    let references = |found: Value| -> Vec<String> {
        let list = found.as_array().expect("a list").iter();
        list.map(|record| record["reference"].as_str().expect("text").to_owned()).collect()
    };
    assert_eq!(references(search(&erp, "order-1")), ["order-1"]);
    assert_eq!(search(&erp, "order-1")[0]["id"], "R-1");
    erp.set_search(Search::Prefix);
    assert_eq!(references(search(&erp, "order-1")), ["order-1", "order-10"]);
    erp.set_search(Search::Unfiltered);
    assert_eq!(references(search(&erp, "order-1")).len(), 3);
    erp.set_search(Search::Empty);
    assert!(references(search(&erp, "order-1")).is_empty());
    erp.set_search(Search::Html);
    let page = get(&erp.url("/records?reference=order-1")).expect("answers");
    assert_eq!(page.status, 200);
    assert!(page.body.starts_with(b"<html>"));
    erp.set_search(Search::Exact);
    erp.next_lookups(answer(500, json!({})));
    assert_eq!(get(&erp.url("/records?reference=order-1")).expect("answers").status, 500);
    assert_eq!(references(search(&erp, "order-1")), ["order-1"]);
    assert_eq!((erp.writes().len(), erp.lookups().len()), (3, 8));
}

#[test]
fn a_wrong_api_key_finds_nothing_and_still_answers_200() {
    let erp = Destination::start(Profile::Plain);
    post(&erp, "a").expect("answers");
    erp.require_api_key("X-Api-Key", "right");
    let mut client = Connection::open(&erp.url("/")).expect("connects");
    let mut find = |key: &str| client.call("GET", "/records?reference=a", &[("X-Api-Key", key)], b"").expect("answers");
    let wrong = find("wrong");
    assert_eq!((wrong.status, wrong.json()), (200, json!([])));
    assert_eq!(find("right").json().as_array().map(Vec::len), Some(1));
    assert_eq!(post(&erp, "b").expect("answers").status, 401);
    assert_eq!(erp.effects(), 1);
}

#[test]
fn seeded_records_are_found_but_are_no_effects_and_new_ones_are_found_after_the_lag() {
    let erp = Destination::start(Profile::Plain);
    erp.set_search_lag(3_600_000);
    let id = erp.seed_record("SENTINEL");
    post(&erp, "a").expect("answers");
    assert_eq!(search(&erp, "SENTINEL")[0]["id"], json!(id));
    assert_eq!(search(&erp, "a"), json!([]));
    assert_eq!(erp.effects(), 1);
    erp.set_search_lag(0);
    assert_eq!(search(&erp, "a").as_array().map(Vec::len), Some(1));
}

#[test]
fn a_stopped_destination_refuses_and_comes_back_on_its_port_with_its_records() {
    let erp = Destination::start(Profile::Plain);
    let mut open = Connection::open(&erp.url("/")).expect("connects");
    open.call("POST", "/records", &[], b"{\"reference\":\"a\"}").expect("answers");
    erp.refuse_connections();
    assert_eq!(post(&erp, "b").expect_err("refused").kind(), ErrorKind::ConnectionRefused);
    open.call("POST", "/records", &[], b"{\"reference\":\"c\"}").expect("an open connection goes on");
    erp.stop();
    assert!(open.call("POST", "/records", &[], b"{}").is_err());
    assert_eq!(post(&erp, "b").expect_err("refused").kind(), ErrorKind::ConnectionRefused);
    erp.restart();
    post(&erp, "b").expect("answers");
    assert_eq!((erp.effects_for("a"), erp.effects_for("b"), erp.effects_for("c")), (1, 1, 1));
}

#[test]
fn many_clients_at_once_are_all_counted() {
    let erp = Destination::start(Profile::Plain);
    std::thread::scope(|scope| {
        for i in 0..16 {
            let erp = &erp;
            scope.spawn(move || (0..20).for_each(|n| drop(post(erp, &format!("{i}-{n}")).expect("answers"))));
        }
    });
    assert_eq!((erp.effects(), erp.requests().len()), (320, 320));
    assert!((1..=16).contains(&erp.peak_in_flight()));
}
