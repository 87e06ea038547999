"""A real Chromium without a screen, driven through chromedriver; the network is off."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    *("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"),
    *("disable-background-networking", "disable-component-update", "disable-sync"),
    *("disable-dev-shm-usage", "window-size=1280,900", "hide-scrollbars"),
)


class Browser:
    """One window."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        driver.execute_cdp_cmd("Network.enable", {})
        self.online(False)

    def online(self, is_online: bool) -> None:
        """Whether pages reach anything."""
        throughput = {f"{way}Throughput": -1 if is_online else 0 for way in ("download", "upload")}
        network = {"offline": not is_online, "latency": 0, **throughput}
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", network)

    def open(self, file: Path) -> float:
        """Open a report and wait until it reacts; returns the seconds that this took."""
        began = time.monotonic()
        self.driver.get(file.as_uri())
        self.wait(lambda: self.script("return document.documentElement.classList.contains('live')"))
        return time.monotonic() - began

    def wait(self, condition: Callable[[], Any], seconds: float = 20.0) -> Any:
        """What the condition answers once that is true."""
        until = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < until, "the page did not get there"
            time.sleep(0.02)
        return found

    def script(self, text: str, *arguments: Any) -> Any:
        return self.driver.execute_script(text, *arguments)

    def timed(self, text: str) -> float:
        """Seconds from an action until the page has drawn what follows from it."""
        after = (
            "const done = arguments[0], began = performance.now();"
            f"{text};"
            "requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));"
        )
        return float(self.driver.execute_async_script(after)) / 1000

    def all(self, selector: str) -> list[Any]:
        """Elements that can be seen."""
        found = self.driver.find_elements("css selector", selector)
        return [one for one in found if one.is_displayed()]

    def texts(self, selector: str) -> list[str]:
        """What those elements say, asked at once for there may be thousands."""
        text = (
            "return [...document.querySelectorAll(arguments[0])]"
            ".filter((one) => one.checkVisibility())"
            ".map((one) => (one.innerText ?? one.textContent).trim())"
        )
        return [str(one) for one in self.script(text, selector)]

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def set(self, selector: str, value: str, event: str = "change") -> None:
        """Give a field a value, as a person's choice does."""
        text = (
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event(arguments[2]))"
        )
        self.script(text, self.one(selector), value, event)
        self.settle()

    def settle(self) -> None:
        """Until two frames have been drawn."""
        self.driver.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
        )

    def emulate(self, media: str = "", **features: str) -> None:
        """Print, dark colours and the like."""
        listed = [{"name": name.replace("_", "-"), "value": features[name]} for name in features]
        asked = {"media": media, "features": listed}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", asked)

    def errors(self) -> list[str]:
        """What the console was told."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]

    def requested(self) -> list[str]:
        """The addresses of all that was asked for since the last call."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return found

    def picture(self, file: Path) -> None:
        """A screenshot of the window."""
        self.settle()
        assert self.driver.save_screenshot(str(file))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own; skips the test, or fails it in CI, without one."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not chromedriver:
        reason = "no chromium and chromedriver on PATH: tests/testbed/install.sh installs them"
        if os.environ.get("HPCRUN_REQUIRE_CLUSTER") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*_FLAGS, f"user-data-dir={profile}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
