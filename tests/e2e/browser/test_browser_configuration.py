"""The configuration as form and as text: each follows the other, errors stand where they are, nothing is applied unseen."""

import re

import pytest
from playwright.sync_api import Page, Route, expect

pytestmark = pytest.mark.browser
ADDRESS = "/models/digits_torch/configuration"


@pytest.fixture
def editor(page: Page) -> Page:
    page.goto(ADDRESS)
    expect(page.locator("#config-status")).to_have_text("valid")
    return page


def test_the_text_follows_the_form_and_marks_what_changed(editor: Page) -> None:
    editor.get_by_label("Queue delay").fill("750")
    expect(editor.locator("#config-text")).to_have_value(re.compile("max_queue_delay_microseconds: 750"))
    expect(editor.locator('[data-field="max_queue_delay_microseconds"]')).to_have_class(re.compile("changed"))
    expect(editor.locator("#config-gutter .changed-line").first).to_be_visible()
    expect(editor.locator("#config-summary")).to_contain_text("in place")
    editor.get_by_role("button", name="Discard changes").click()
    expect(editor.get_by_label("Queue delay")).to_have_value("500")
    expect(editor.get_by_role("button", name="Review changes")).to_be_disabled()


def test_the_form_follows_the_text(editor: Page) -> None:
    text = editor.locator("#config-text").input_value()
    editor.locator("#config-text").fill(text.replace("max_batch_size: 64", "max_batch_size: 32"))
    expect(editor.get_by_label("Largest batch")).to_have_value("32")
    expect(editor.locator("#config-text")).to_have_value(re.compile("# The convolutional network"))


def test_a_late_answer_does_not_undo_what_was_typed_meanwhile(page: Page) -> None:
    late: list[Route] = []
    page.route("**/configuration/preview", lambda route: route.continue_() if late else late.append(route))
    page.goto(ADDRESS)
    while not late:
        page.wait_for_timeout(20)
    page.get_by_label("Queue delay").fill("750")
    page.get_by_label("Largest batch").focus()
    late[0].continue_()
    expect(page.locator("#config-text")).to_have_value(re.compile("max_queue_delay_microseconds: 750"))
    expect(page.get_by_label("Queue delay")).to_have_value("750")


def test_an_error_stands_at_its_line_and_cannot_be_applied(editor: Page) -> None:
    text = editor.locator("#config-text").input_value()
    editor.locator("#config-text").fill(text.replace("max_batch_size", "max_batchsize"))
    problem = editor.locator("#config-problems .error").first
    expect(problem).to_contain_text("max_batchsize")
    expect(problem).to_contain_text(re.compile(r"Line \d+"))
    expect(editor.locator("#config-gutter .bad")).to_have_count(1)
    expect(editor.get_by_role("button", name="Review changes")).to_be_disabled()


def test_an_error_stands_at_its_field(editor: Page) -> None:
    editor.get_by_label("Queue delay").fill("soon")
    field = editor.locator('[data-field="max_queue_delay_microseconds"]')
    expect(field.locator("[data-error]")).to_contain_text("whole number")
    expect(editor.get_by_label("Queue delay")).to_have_attribute("aria-invalid", "true")
    expect(editor.get_by_label("Queue delay")).to_have_value("soon")


def test_a_change_is_reviewed_applied_and_taken_back(editor: Page) -> None:
    editor.locator('[data-rows="instance_groups"] [data-key="count"]').first.fill("2")
    expect(editor.locator("#config-text")).to_have_value(re.compile("count: 2"))
    editor.get_by_role("button", name="Review changes").click()
    review = editor.get_by_role("dialog", name="Review changes")
    expect(review).to_contain_text("Applies in place")
    expect(review.locator(".diff .add").first).to_contain_text("count: 2")
    review.get_by_label("What is this change for?").fill("more at once")
    review.get_by_role("button", name="Apply").click()
    expect(editor.locator(".toasts")).to_contain_text("The configuration is applied")
    expect(editor.locator(".list").last).to_contain_text("more at once")
    expect(editor.locator("#config-text")).to_have_value(re.compile("count: 2"))

    editor.get_by_role("button", name=re.compile("Return to ")).first.click()
    editor.get_by_role("dialog").get_by_role("button", name=re.compile("Return to ")).click()
    expect(editor.locator(".toasts")).to_contain_text("applied again")
    expect(editor.locator("#config-text")).to_have_value(re.compile("count: 1"))
