"""A real Chromium, driven by its own driver. Waiting is for conditions only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from selenium import webdriver
from selenium.common.exceptions import ElementClickInterceptedException, TimeoutException, WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from rekindle.console.server import Console
from tests.console.chromium_install import Installation

PATIENCE_S: Final = 240
WIDE: Final = (1280, 860)
NARROW: Final = (390, 844)
TALLEST: Final = 2600  # pixels of one picture
# Without these Chromium asks its maker's servers at every start.
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)


_STATE: Final = """return JSON.stringify({hidden: document.hidden, at_ms: performance.now(),
    asked: performance.getEntriesByType('resource').slice(-8).map((e) => [e.name, e.startTime, e.duration])})"""


@dataclass(frozen=True)
class Browser:
    """Hands and eyes."""

    driver: webdriver.Chrome

    def open(self, console: Console, path: str = "/") -> None:
        """By the printed link first, as a person does."""
        self.driver.get(console.link)
        if path != "/":
            self.go(console, path)

    def go(self, console: Console, path: str) -> None:
        self.driver.get(f"http://127.0.0.1:{console.gate.port}{console.gate.base}{path}")

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for it. An element that is exchanged under our eyes, or a page that is left, is looked at again."""
        wait = WebDriverWait(self.driver, PATIENCE_S, poll_frequency=0.2, ignored_exceptions=(WebDriverException,))

        try:
            return wait.until(lambda _: condition())
        except TimeoutException:
            state = self.run(_STATE)
            raise AssertionError(f"{what} did not come; {state}; the page says:\n{self.text()[-3000:]}") from None

    def text(self) -> str:
        return str(self.driver.execute_script("return document.body ? document.body.innerText : ''"))

    def one(self, css: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def click(self, css: str, what: str) -> None:
        """Click the first such element once it is there."""
        self.until(lambda: self._clicked(css), what)

    def _clicked(self, css: str) -> bool:
        try:
            self.one(css).click()
        except ElementClickInterceptedException:
            return False
        return True

    def write(self, css: str, text: str, what: str) -> None:
        """Type into the first such field once it is there; from then on the page's refresh leaves it alone."""

        def written() -> bool:
            field = self.one(css)
            field.clear()
            field.send_keys(text)
            return True

        self.until(written, what)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wears(self, *, dark: bool = False, size: tuple[int, int] = WIDE) -> None:
        """How it is looked at: scheme and size."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self._size(*size)

    def _size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def picture(self, file: Path, *, size: tuple[int, int] = WIDE) -> None:
        """The whole page, as far down as TALLEST."""
        tall = int(self.run("return document.documentElement.scrollHeight"))
        self._size(size[0], min(max(tall, 320), TALLEST))
        file.parent.mkdir(parents=True, exist_ok=True)
        assert self.driver.save_screenshot(str(file))
        self._size(*size)

    def complaints(self) -> list[str]:
        """What the page's console says: a refused script, a blocked style, a missing file."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]


@contextmanager
def open_browser(installation: Installation, profile: Path) -> Iterator[Browser]:
    options = Options()
    options.binary_location = installation.browser
    for flag in (*_FLAGS, f"--user-data-dir={profile}", f"--window-size={WIDE[0]},{WIDE[1]}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    import os

    driver = webdriver.Chrome(
        options=options, service=Service(installation.driver, env={**os.environ, **installation.environ()})
    )
    driver.set_page_load_timeout(PATIENCE_S)
    driver.set_script_timeout(PATIENCE_S)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
