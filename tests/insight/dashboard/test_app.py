"""The application: who may look, what is sent, and that nothing can be changed."""

import asyncio
import json
import re

import pytest

from evenstep.insight.dashboard.app import MOST_FOLLOWERS, load, make_app
from evenstep.insight.dashboard.folder import Folder
from evenstep.insight.dashboard.source import key_of
from evenstep.insight.dashboard.stream import HISTORY, Page, stream
from evenstep.insight.report.words import SOURCE_MEANS
from evenstep.runlog import Event
from tests.insight.dashboard.asgi import ask, get, send
from tests.runlog.examples import header, row, text_of

TOKEN = "correct-horse-battery"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text_of(header(), *(row(k) for k in range(3))))
    return path


@pytest.fixture
def folder(tmp_path, path):
    folder = Folder(tmp_path)
    folder.poll()
    return folder


def app_for(folder, **options):
    """An application whose streams end at once."""
    return make_app(folder, is_over=lambda: True, **options)


def test_the_page_and_its_parts_are_served_with_headers_that_keep_others_out(folder):
    app = app_for(folder)
    for target in ("/", *(f"/assets/{name}" for name in load())):
        answer = get(app, target)
        assert answer.status == 200, target
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert get(app, "/").headers["content-type"] == "text/html; charset=utf-8"
    assert get(app, "/assets/main.js").headers["content-type"].startswith("text/javascript")


def test_the_page_loads_nothing_from_elsewhere_and_has_no_script_of_its_own():
    page = load()["index.html"].content.decode()
    assert "//" not in page.replace("<!DOCTYPE", "")
    assert page.count("<script") == 1
    assert "style=" not in page
    scripts = b"".join(asset.content for name, asset in load().items() if name.endswith(".js"))
    for danger in (b"innerHTML", b"outerHTML", b"insertAdjacent", b"eval(", b"document.write"):
        assert danger not in scripts


@pytest.mark.parametrize("target", ["/assets/../app.py", "/assets/nothing.js", "/etc/passwd"])
def test_nothing_else_is_served(folder, target):
    assert get(app_for(folder), target).status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(folder, method):
    for target in ("/", "/api/stream", "/assets/main.js"):
        assert send(app_for(folder), method, target).status == 405


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7413", "192.0.2.1", "", "[::1"])
def test_on_loopback_a_foreign_host_is_refused(folder, host):
    for target in ("/", "/api/stream"):
        assert get(app_for(folder), target, host).status == 403


@pytest.mark.parametrize("host", ["localhost:7413", "127.0.0.1", "[::1]:7413"])
def test_on_loopback_its_names_are_welcome(folder, host):
    assert get(app_for(folder), "/", host).status == 200


def test_where_others_can_reach_it_the_token_is_what_counts(folder):
    app = app_for(folder, token=TOKEN, local=False)
    assert get(app, "/", "node7").status == 200
    for wrong in ({}, {"authorization": f"Bearer {TOKEN}x"}, {"authorization": TOKEN}):
        answer = get(app, "/api/stream", "node7", **wrong)
        assert answer.status == 401
        assert TOKEN.encode() not in answer.body
    assert get(app, "/api/stream", "node7", authorization=f"Bearer {TOKEN}").status == 200
    assert get(app, f"/api/stream?token={TOKEN}", "node7").status == 401


@pytest.mark.parametrize("worker", ["-1", "x", "1.5", "٣", "9" * 50])
def test_a_worker_must_be_a_number(folder, worker):
    assert get(app_for(folder), f"/api/stream?worker={worker}").status == 400


def test_so_many_follow_at_a_time_and_no_more_also_if_all_come_at_once(folder):
    over = False
    app = make_app(folder, is_over=lambda: over)

    async def follow_all(count):
        nonlocal over
        over = False
        asked = [asyncio.create_task(ask(app, "/api/stream")) for _ in range(count)]
        await asyncio.sleep(0.1)
        over = True
        return sorted(answer.status for answer in await asyncio.gather(*asked))

    for _ in range(2):
        statuses = asyncio.run(follow_all(MOST_FOLLOWERS + 3))
        assert statuses == [200] * MOST_FOLLOWERS + [503] * 3


def news_of(folder, page, now):
    folder.poll()
    return dict(page.due_events(now))


def test_a_page_is_told_everything_once_and_then_what_is_new(folder, path):
    page = Page(folder, None, None)
    first = news_of(folder, page, 1.0)
    assert list(first) == ["jobs", "job", "now", "course"]
    assert first["job"]["workers"] == ["w0", "w1"]
    assert first["job"]["means"] == SOURCE_MEANS["simulated"]
    assert [one["iteration"] for one in first["now"]["rows"]] == [0, 1, 2]
    assert first["course"]["worker"]["worker"] == 0
    assert news_of(folder, page, 1.1) == {}
    text = text_of(header(), *(row(k) for k in range(4)), Event("end", 4, reason="done"))
    path.write_text(text)
    then = news_of(folder, page, 1.2)
    assert [one["iteration"] for one in then["now"]["rows"]] == [3]
    assert then["now"]["ended"] == "done"
    assert "course" not in then
    assert "course" in news_of(folder, page, 1.0 + HISTORY)


def test_of_very_many_workers_pages_are_told_less_often(folder, path):
    workers = [f"w{i}" for i in range(5000)]
    head = header(workers=workers)
    rows = [row(k, [1] * 5000, [0.1] * 5000) for k in range(2)]
    path.write_text(text_of(head, rows[0]))
    page = Page(folder, None, 0)

    def told(now):
        while folder.poll():
            pass
        return "now" in dict(page.due_events(now))

    assert told(1.0)
    path.write_text(text_of(head, *rows))
    assert not told(1.5)
    assert told(2.1)


def test_a_second_job_is_told_when_it_changes_and_never_the_first_one(folder, path, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text(text_of(header(job="other"), row(0)))
    folder.rescan()
    first, second = key_of("run.jsonl"), key_of("other.jsonl")
    page, same = Page(folder, first, 1, second), Page(folder, first, 1, first)
    told = news_of(folder, page, 1.0)
    assert (told["other"]["key"], told["other"]["job"]) == (second, "other")
    assert told["other"]["batch_sizes"] == [24]
    other.write_text(text_of(header(job="other"), row(0), row(1)))
    assert "other" not in news_of(folder, page, 1.1)
    assert news_of(folder, page, 1.0 + HISTORY)["other"]["iterations"] == [0, 1]
    assert "other" not in news_of(folder, page, 1.0 + 3 * HISTORY)
    assert "other" not in news_of(folder, same, 1.0)


def test_every_colour_of_the_page_has_a_name_in_both_themes():
    assets = {name: asset.content.decode() for name, asset in load().items()}
    light, dark = re.findall(r":root[^{]*\{([^}]*)\}", assets["style.css"])
    names = [set(re.findall(r"--[a-z-]+(?=:)", theme)) for theme in (light, dark)]
    assert names[0] == names[1]
    colour = r"#[0-9a-fA-F]{3,8}\b|\brgba?\("
    rest = assets["style.css"].replace(light, "").replace(dark, "")
    assert re.findall(colour, re.sub(r"#[a-z-]+ ", "", rest)) == []
    for name, text in assets.items():
        if name.endswith((".js", ".html")):
            assert re.findall(colour, text) == [], name
        used = set(re.findall(r"var\((--[a-z-]+)\)", text))
        used |= {f"--{found}" for found in re.findall(r'colour\("([a-z-]+)"\)', text)}
        assert used <= names[0], name


def luminance(colour):
    """Return the relative luminance of a colour like #0072b2, as WCAG 2.2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_colours_that_mean_something_differ_and_stand_out_from_the_page():
    style = load()["style.css"].content.decode()
    for theme in re.findall(r":root[^{]*\{([^}]*)\}", style):
        colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]+)", theme))
        roles = ["run", "plain", "optimum", "warn", "predicted", "other", "workers"]
        assert len({colours[role] for role in roles}) == len(roles)
        for role in roles:
            pair = sorted(luminance(colours[name]) for name in (role, "card"))
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 3, role
        for ink in ("ink", "pale"):
            pair = sorted(luminance(colours[name]) for name in (ink, "back"))
            assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, ink


def test_another_run_under_the_same_name_is_told_from_its_beginning(folder, path, tmp_path):
    page = Page(folder, None, 1)
    news_of(folder, page, 1.0)
    other = tmp_path / "other"
    other.write_text(text_of(header(job="again"), row(0)))
    other.replace(path)
    told = news_of(folder, page, 1.1)
    assert told["job"]["job"] == "again"
    assert [one["iteration"] for one in told["now"]["rows"]] == [0]
    assert told["course"]["worker"]["worker"] == 1


def test_the_next_job_is_shown_when_the_newest_is_over_and_nobody_chose_it(folder, path, tmp_path):
    chosen = Page(folder, folder.entries()[0].key, None)
    page = Page(folder, None, None)
    assert news_of(folder, page, 1.0)["job"]["job"] == "G"
    path.write_text(text_of(header(), row(0), row(1), row(2), Event("end", 3)))
    (tmp_path / "next.jsonl").write_text(text_of(header(job="next"), row(0)))
    folder.rescan()
    assert news_of(folder, page, 3.0)["job"]["job"] == "next"
    assert dict(chosen.due_events(2.0))["job"]["job"] == "G"


def test_the_stream_is_server_sent_events_and_ends_when_told(folder):
    async def follow():
        texts: list[bytes] = []
        async for text in stream(folder, None, None, lambda: len(texts) > 4):
            folder.poll()
            texts.append(text)
        return texts

    first, *texts = asyncio.run(asyncio.wait_for(follow(), 20))
    assert first.startswith(b": ")
    names = []
    for text in texts:
        name, data, end = text.decode().split("\n", 2)
        assert end == "\n"
        assert data.startswith("data: ")
        json.loads(data.removeprefix("data: "))
        names.append(name)
    assert names[:4] == ["event: jobs", "event: job", "event: now", "event: course"]
