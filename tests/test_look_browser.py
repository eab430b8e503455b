"""The page of `dualnet.look` in Chromium: pointer, keyboard, switches, chart, a long text."""

import json
import re
import shutil

import numpy as np
import pytest

import dualnet
from dualnet.text import ByteTokenizer, Vocabulary
from tests.checks import needed, once, sentences, small, strong

pytestmark = [once, pytest.mark.slow]

webdriver, by, keys, ui = needed(
    "test-all", "selenium.webdriver", "selenium.webdriver.common.by",
    "selenium.webdriver.common.keys", "selenium.webdriver.support.ui",
)  # fmt: skip
By, Keys, Select = by.By, keys.Keys, ui.Select
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not (BROWSER and DRIVER):
    pytest.skip("Chromium and chromedriver are not installed", allow_module_level=True)
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --window-size=1200,1000"
)
WORDS = Vocabulary(("the", "cat", "dog", "bird", "fish", "sees", "likes", "finds", "<unk>",
                    "<eos>"))  # fmt: skip
TEXT = sentences(10, seed=3) + "the zebra sees the cat\n"


def a_model(name, seed, tokenizer=WORDS):
    return strong(small(tokenizer, name), seed=seed)


def signed(bits):
    """Return a number as the page shows it, with a minus sign of the width of a plus."""
    return f"{bits:+.2f}".replace("-", "\u2212")


class Browser:
    """A page in Chromium, and what a reader sees of it."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, page, folder):
        page.save(folder / "page.html")
        self.driver.get((folder / "page.html").as_uri())
        source = re.search(r'id="data">(.*?)</script>', page.html, re.DOTALL)[1]
        self.data = json.loads(source)
        return self

    def run(self, script, *arguments):
        return self.driver.execute_script(f"return {script}", *arguments)

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector):
        found = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return [element.text for element in found]

    def word(self, i):
        return self.run("document.querySelectorAll('.w')[arguments[0]]", i)

    def hover(self, element, dx=0, dy=0):
        webdriver.ActionChains(self.driver).move_to_element_with_offset(element, dx, dy).perform()

    def press(self, *keys):
        for key in keys:
            webdriver.ActionChains(self.driver).send_keys(key).perform()

    def choose(self, value):
        self.run(f"document.querySelector('input[value=\"{value}\"]').click()")

    def colours(self):
        return self.run(
            "Array.from(document.querySelectorAll('.w'), w => getComputedStyle(w).backgroundColor)"
        )

    def here(self):
        return self.run(
            "Array.from(document.querySelectorAll('.w')).findIndex(w => w.matches('.here'))"
        )


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for option in [*OPTIONS.split(), f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"]:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def two_models():
    models = {"plain": a_model("lstm", 5), "dual": a_model("dual_lstm", 4)}
    settings = {"rule": "sgd", "learning_rate": 0.1, "sequence_length": 10}
    return dualnet.look(models, TEXT, adapt=True, **settings)


@pytest.fixture
def browser(driver, two_models, tmp_path):
    return Browser(driver).open(two_models, tmp_path)


@pytest.fixture(autouse=True)
def nothing_in_the_log(driver):
    yield
    assert driver.get_log("browser") == []  # no error, and nothing that was refused or missed


def test_the_pointer_shows_the_five_likeliest_words_and_the_rank(browser):
    data = browser.data
    assert "Point at a word" in browser.find("#details").text
    for i in (0, 7, 12):
        browser.hover(browser.word(i))
        reading = data["readings"][0]
        names = [data["names"][str(k)] for k in reading["likeliest"][5 * i : 5 * i + 5]]
        true = data["names"][str(data["ids"][i])]
        expected = names if true in names else [*names, true]
        assert browser.texts("#details li > span") == expected
        assert browser.texts("#details li.true > span") == [true]
        facts = browser.find("#details").text
        assert f"{reading['bits'][i]:.2f} bits" in facts and f"rank {reading['ranks'][i]}" in facts
        shown = [float(text.strip("%< ")) for text in browser.texts("#details li > b")][:5]
        p = 100 * np.array(reading["probabilities"][5 * i : 5 * i + 5])
        np.testing.assert_allclose(shown, p, atol=0.51)
    unknown = data["pieces"].index("zebra")
    browser.hover(browser.word(unknown))
    assert "read as <unk>" in browser.find("#details").text


def test_the_switches_change_colours_and_predictions(browser):
    browser.run("document.querySelectorAll('.w')[3].click()")
    seen = set()
    for model in (0, 1):
        browser.choose(model)
        for kind in ("fixed", "learning"):
            browser.choose(kind)
            reading = browser.data["readings"][2 * model + (kind == "learning")]
            assert f"{reading['bits'][3]:.2f} bits" in browser.find("#details").text
            seen.add(tuple(browser.colours()))
            on = browser.texts("#lines .on")
            assert len(on) == 1 and on[0].startswith(f"{['plain', 'dual'][model]} ({kind})")
            if kind == "learning":
                assert "after learning from 0 words" in browser.find("#details").text
    assert len(seen) == 4


def test_the_inside_is_coloured_by_the_value_that_is_chosen(browser):
    browser.choose(1)
    browser.choose("learning")
    browser.choose("inside")
    assert not browser.find("#kinds").is_displayed()
    inside = browser.data["readings"][2]["inside"]
    assert browser.texts("#value option") == [*inside]
    for label in inside:
        Select(browser.find("#value")).select_by_visible_text(label)
        assert label in browser.find("#legend-title").text
        classes = browser.run("Array.from(document.querySelectorAll('.w'), w => w.className)")
        values = np.array(inside[label])
        if label.startswith("mean"):
            steps = [int(re.search(r"\bs(\d)", name)[1]) for name in classes]
            np.testing.assert_array_equal(steps, np.minimum(8, values / 0.1).astype(int))
        else:
            steps = np.array([int(re.search(r"\bd(\d)", name)[1]) for name in classes])
            assert (values[steps > 4] > 0).all() and (values[steps < 4] < 0).all()
    browser.hover(browser.word(3))
    assert f"{label} {values[3]:.2f}" in browser.find("#details").text
    browser.choose(0)
    assert browser.texts("#value option") == [*browser.data["readings"][0]["inside"]]


def test_the_difference_is_that_of_the_two_readings_that_are_chosen(browser):
    browser.choose("difference")
    assert not browser.find("#models").is_displayed() and browser.find("#pair").is_displayed()
    for other, base in ((2, 0), (3, 2), (1, 3)):
        for name, value in (("other", other), ("base", base)):
            Select(browser.find(f"#{name}")).select_by_value(str(value))
        readings = browser.data["readings"]
        gains = np.subtract(readings[base]["bits"], readings[other]["bits"])
        classes = browser.run("Array.from(document.querySelectorAll('.w'), w => w.className)")
        steps = np.array([int(re.search(r"\bd(\d)", name)[1]) for name in classes])
        assert (gains[steps > 4] > 0).all() and (gains[steps < 4] < 0).all()
        assert len(set(steps)) > 1
        best = int(np.argmax(np.abs(gains)))
        browser.hover(browser.word(best))
        assert f"{signed(gains[best])} bits gained" in browser.find("#details").text
        assert len(browser.texts("#details .columns ol")) == 2
        assert f"{signed(gains.sum())} bits in all" in browser.find("#lines").text
    (learnt,) = browser.texts("#legend-title")
    assert "plain (learning)" in learnt


def test_the_arrow_keys_move_along_the_words_from_one_tab_stop(browser):
    browser.run("document.querySelector('#kinds input:checked').focus()")
    browser.press(Keys.TAB)
    assert browser.here() == 0
    browser.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert browser.here() == 1 and browser.run("document.activeElement.matches('.here')")
    assert len(browser.texts(".w[tabindex]")) == 1
    spoken = browser.run("document.querySelector('#live').textContent")
    reading = browser.data["readings"][0]
    assert spoken.startswith(f"{browser.data['pieces'][1]}: {reading['bits'][1]:.2f} bits, rank ")
    assert "Likeliest: " in spoken
    browser.press(Keys.END)
    assert browser.here() == len(browser.data["ids"]) - 1
    browser.press(Keys.HOME, Keys.ARROW_DOWN)
    assert browser.here() == 6  # below the first word: each sentence and its end are 6 tokens
    browser.press(Keys.ARROW_UP)
    assert browser.here() == 0
    browser.press(Keys.ESCAPE)
    assert browser.here() == -1
    browser.press(Keys.TAB)
    assert not browser.run("document.activeElement.matches('.w')")


def test_the_chart_and_the_text_show_the_same_word(browser):
    plot, size = browser.find("#plot"), len(browser.data["ids"])
    browser.hover(plot)
    assert abs(browser.here() - size / 2) < size / 10
    middle = browser.find("#cursor .cursor").get_attribute("x1")
    browser.hover(browser.word(2))
    assert float(browser.find("#cursor .cursor").get_attribute("x1")) < float(middle) / 2
    (name,) = (browser.find("#plot").get_attribute("aria-label"),)
    for reading, label in zip(browser.data["readings"], browser.texts("#lines span")):
        assert label in name
        shown = float(label.split(" ")[-1].replace(",", ""))
        np.testing.assert_allclose(shown, reading["perplexity"], rtol=0.01)
    assert len(browser.driver.find_elements(By.CSS_SELECTOR, "#plot path")) == 4


def test_roles_and_names_are_those_that_a_screen_reader_needs(browser):
    text = browser.find("#text")
    assert text.aria_role == "listbox" and "plain (fixed)" in text.accessible_name
    assert browser.word(0).aria_role == "option" and browser.word(0).accessible_name == "the"
    for selector, name in (("#other", "by"), ("#base", "over")):
        browser.choose("difference")
        assert browser.find(selector).accessible_name.strip() == name  # some versions keep a blank
    assert "gains over" in browser.find("#text").accessible_name
    browser.choose("surprisal")
    radios = browser.driver.find_elements(By.CSS_SELECTOR, "input[type=radio]")
    assert len(radios) == 7 and all(radio.accessible_name for radio in radios)


def test_a_narrow_screen_shows_the_details_on_demand_and_does_not_scroll_sideways(browser):
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        assert not browser.find("#details").is_displayed()
        word = browser.word(20)
        word.click()
        assert browser.find("#details").is_displayed()
        top = browser.find("#details").rect["y"] - browser.run("scrollY")
        bottom = browser.run("arguments[0].getBoundingClientRect().bottom", word)
        assert bottom <= browser.run(
            "document.querySelector('#details').getBoundingClientRect().top"
        )
        assert top < 740
        assert browser.run("document.documentElement.scrollWidth") <= 360
        browser.find("#close").click()
        assert not browser.find("#details").is_displayed()
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_text_stands_as_it_was_written_and_runs_no_script(driver, tmp_path):
    text = "Ü  a\tb\n\n</script><script>document.title = 'broken'</script> <b>&amp;</b>\n"
    page = dualnet.look(a_model("lstm", 5, ByteTokenizer()), text)
    browser = Browser(driver).open(page, tmp_path)
    shown = browser.run(
        "Array.from(document.querySelector('#text').childNodes).filter("
        "n => !n.matches?.('.part')).map(n => n.textContent).join('')"
    )
    assert shown.replace("↵", "") == text
    assert driver.title == "How lstm reads this text"
    assert browser.texts("#views span") == ["Surprisal", "Inside"]  # one reading: no difference


def test_tokens_and_words_are_switched_and_a_word_has_the_sum_of_its_tokens(driver, tmp_path):
    text = "the “cat” — 5\u00a0dogs\nläuft"
    page = dualnet.look(a_model("lstm", 5, ByteTokenizer()), text)
    browser = Browser(driver).open(page, tmp_path)
    assert "\\x" not in browser.find("#text").text
    assert browser.texts(".w.part") == [] and "“" in browser.texts(".w")
    browser.hover(browser.word(4))
    facts = browser.find("#details").text
    bits = browser.data["readings"][0]["bits"]
    assert "tokens 5\u20137 of" in facts and f"{sum(bits[4:7]):.1f} bits in all" in facts
    assert "“ (2 of 3)" in facts
    browser.choose("word")
    assert browser.texts(".w") == ["the", "“cat”", "—", "5", "dogs", "↵", "läuft"]
    browser.hover(browser.word(0))
    facts = browser.find("#details").text
    assert "word 1 of 7, 3 tokens" in facts and f"{sum(bits[:3]):.1f} bits in all" in facts
    assert "Perplexity of the tokens up to each word" in browser.find("#chart-title").text
    browser.run("document.querySelectorAll('.w')[6].click()")
    browser.choose("token")
    assert browser.texts(".w.here") == ["l"]


def test_a_long_text_is_written_once_and_pointing_at_a_word_touches_that_word_alone(
    driver, tmp_path
):
    lines = sentences(834, seed=1)
    page = dualnet.look({"plain": a_model("lstm", 5), "dual": a_model("dual_lstm", 4)}, lines)
    assert page.units >= 5000
    browser = Browser(driver).open(page, tmp_path)
    assert browser.run("document.querySelectorAll('*').length") < page.units + 150
    browser.run(
        "void (window.seen = [], new MutationObserver(all => seen.push(...all)).observe("
        "document.querySelector('#text'), "
        "{subtree: true, childList: true, attributes: true, characterData: true}))"
    )
    for i in (3, 11, 40):
        browser.hover(browser.word(i))
        assert browser.here() == i
    changed = browser.run("[seen.length, seen.every(change => change.attributeName === 'class')]")
    assert changed == [5, True]  # the word on, and the one before off
    browser.choose("difference")
    assert browser.run("seen.every(change => change.type === 'attributes')")
    browser.hover(browser.word(3))
    browser.run("document.querySelectorAll('.w')[3].click()")
    browser.press(Keys.END)
    assert browser.here() == page.units - 1
    inside = browser.run(
        "document.activeElement.getBoundingClientRect().bottom <= "
        "document.querySelector('#text').getBoundingClientRect().bottom + 1"
    )
    assert inside
