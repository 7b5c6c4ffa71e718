"""The jobs of a real manager in a real browser."""

from playwright.sync_api import expect

from tests.manager.managers import boundary, running

SETTINGS = {"workers": 2, "total": 60, "policy": "proportional", "predictor": "ema"}


def test_a_manager_is_followed_until_it_goes(tmp_path, dashboard, open_page):
    with running(log=tmp_path / "log") as manager:
        page = open_page(
            dashboard("--manager", manager.url.removeprefix("http://")).url, ready=False
        )
        expect(page.locator("#banner")).to_contain_text("no running job yet", timeout=20_000)
        expect(page.locator("#remedies")).to_contain_text("evenstep manager")
        clients = [manager.connect("resnet", name, **SETTINGS) for name in ("w0", "w1")]
        boundary(clients, 0)
        boundary(clients, 1, 100.0, 50.0)
        expect(page.locator("#job")).to_have_text("resnet", timeout=20_000)
        expect(page.locator("#iteration-time")).to_have_text("200 ms")
        expect(page.locator("#state")).to_have_text("live")
        sizes = page.locator("#events li[data-kind='plan']").first
        expect(sizes).to_contain_text("40/20")
        for client in clients:
            client.leave()
        expect(page.locator("#banner")).to_contain_text("The run has ended: all workers left")
        manager.stop()
        expect(page.locator("#banner")).to_contain_text("manager", timeout=20_000)
        expect(page.locator("#iteration-time")).to_have_text("200 ms")
