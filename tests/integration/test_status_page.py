"""The page at `/`, in a real Chromium on a real gateway and Triton."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.deploy.load import traffic
from tests.gateway_process import GatewayProcess, free_port, run_gateway

WAIT_S = 20
KEY = "a-key-of-the-test"


def program(name: str) -> str:
    return shutil.which(name) or pytest.fail(
        f"{name} is missing: install it with `apt install chromium chromium-driver`"
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = program("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    profile = tmp_path_factory.mktemp("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--window-size=1000,900", f"--user-data-dir={profile}"):
        options.add_argument(argument)
    browser = Chrome(options, Service(program("chromedriver")))
    yield browser
    browser.quit()


def text_of(browser: Chrome, element: str) -> str:
    return browser.find_element(By.ID, element).text


def wait_for(browser: Chrome, element: str, pattern: str) -> str:
    """Wait until the element's text is of that form; return it."""
    WebDriverWait(browser, WAIT_S).until(lambda _: re.search(pattern, text_of(browser, element)))
    return text_of(browser, element)


def compare(browser: Chrome, first: str, second: str) -> None:
    for element, text in (("first", first), ("second", second)):
        field = browser.find_element(By.ID, element)
        field.clear()
        field.send_keys(text)
    browser.find_element(By.TAG_NAME, "button").click()


def complaints(browser: Chrome) -> list[str]:
    """Return what the browser's console has of errors, of the content security policy among others."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]  # type: ignore[no-untyped-call]


def test_models_are_shown_as_ready(browser: Chrome, gateway: GatewayProcess) -> None:
    browser.get(gateway.url)
    row = browser.find_element(By.CSS_SELECTOR, "tr[data-model]")
    WebDriverWait(browser, WAIT_S).until(lambda _: row.get_attribute("class") == "ready")
    assert row.text.split() == ["all-MiniLM-L6-v2", "384", "256", "tokens", "mean", "fp32", "32", "2"]
    assert not browser.find_element(By.ID, "key").is_displayed()
    assert not browser.find_element(By.ID, "endpoints").is_displayed()
    assert complaints(browser) == []


def test_two_texts_are_compared(browser: Chrome, gateway: GatewayProcess) -> None:
    browser.get(gateway.url)
    compare(browser, "A cat sleeps on the sofa.", "A kitten is napping on the couch.")
    alike = float(wait_for(browser, "answer", r"^cosine").split()[1])
    compare(browser, "A cat sleeps on the sofa.", "The invoice is due in March.")
    WebDriverWait(browser, WAIT_S).until(lambda _: str(alike) not in text_of(browser, "answer"))
    unlike = float(wait_for(browser, "answer", r"^cosine").split()[1])
    assert unlike < 0.3
    assert 0.6 < alike < 1
    compare(browser, "<b>same</b> & same", "<b>same</b> & same")
    wait_for(browser, "answer", r"^cosine 1\.0000 \(\d+ tokens, \d+ ms\)$")
    assert complaints(browser) == []


def test_an_error_is_shown_in_the_gateways_words(browser: Chrome, gateway: GatewayProcess) -> None:
    browser.get(gateway.url)
    compare(browser, "some text", "")
    assert wait_for(browser, "answer", "empty") == "Item 1 of `input` is empty."


def test_figures_move_under_load(browser: Chrome, gateway: GatewayProcess) -> None:
    browser.get(gateway.url)
    with traffic(gateway.url, callers=3):
        wait_for(browser, "rate", r"^[1-9]")
        assert re.fullmatch(r"\d+ ms|\d+\.\d s", wait_for(browser, "p50", r"\ds?"))
        assert float(wait_for(browser, "rows", r"\d")) >= 1
        assert 0 < int(wait_for(browser, "padding", r"%$").split()[0]) < 60
        wait_for(browser, "slots", r"^[12] of 2$")
        if picture := os.environ.get("STATUS_PICTURE"):
            compare(browser, "A cat sleeps on the sofa.", "A kitten is napping on the couch.")
            wait_for(browser, "answer", r"^cosine")
            Path(picture).write_bytes(browser.get_screenshot_as_png())


def test_a_key_is_asked_for_where_one_is_needed(
    browser: Chrome, model_repository: Path, triton_url: str, tmp_path: Path
) -> None:
    with run_gateway(
        tmp_path / "log", model_repository=model_repository, triton_url=triton_url, api_keys=KEY
    ) as gateway:
        browser.get(gateway.url)
        compare(browser, "a", "b")
        assert "API key" in wait_for(browser, "answer", "key")
        browser.find_element(By.ID, "key").send_keys(KEY)
        compare(browser, "a", "b")
        wait_for(browser, "answer", r"^cosine")
    # Its last answer stays, and a line says that it has gone.
    WebDriverWait(browser, WAIT_S).until(lambda _: browser.find_element(By.ID, "offline").is_displayed())


def test_several_endpoints_are_shown_with_their_state(
    browser: Chrome, model_repository: Path, triton_url: str, tmp_path: Path
) -> None:
    away = f"127.0.0.1:{free_port()}"
    browser.get("about:blank")
    complaints(browser)  # those of other tests' pages
    with run_gateway(tmp_path / "log", model_repository=model_repository, triton_url=f"{triton_url},{away}") as gateway:
        browser.get(gateway.url)
        WebDriverWait(browser, WAIT_S).until(lambda _: browser.find_element(By.ID, "endpoints").is_displayed())
        rows = browser.find_elements(By.CSS_SELECTOR, "#endpoints tbody tr")
        shown = {row.text.split()[0]: row.get_attribute("class") for row in rows}
        assert shown == {triton_url: "ready", away: "unready"}
        assert complaints(browser) == []


def test_nothing_comes_from_elsewhere(gateway: GatewayProcess) -> None:
    answer = httpx.get(f"{gateway.url}/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.findall(r"(?:src|href)=.?(?:https?:)?//", answer.text)
    assert len(answer.content) < 16_000


def test_off(model_repository: Path, triton_url: str, tmp_path: Path) -> None:
    with run_gateway(
        tmp_path / "log", model_repository=model_repository, triton_url=triton_url, status_page=False
    ) as gateway:
        assert httpx.get(f"{gateway.url}/").status_code == 404
