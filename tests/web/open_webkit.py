"""A window of WebKitGTK that a driver steers, and that keeps what pages store: run by the system's Python.

MiniBrowser keeps nothing while it is steered. `open_webkit.py FOLDER WIDTH`: where it keeps that, and pixels.
"""

import sys

import gi

gi.require_version("Gtk", "3.0")
gi.require_version("WebKit2", "4.1")
from gi.repository import Gtk, WebKit2

FOLDER, WIDTH = sys.argv[1], int(sys.argv[2])
HEIGHT = 900

manager = WebKit2.WebsiteDataManager(
    base_data_directory=f"{FOLDER}/data", base_cache_directory=f"{FOLDER}/cache"
)
context = WebKit2.WebContext(website_data_manager=manager)
context.set_automation_allowed(True)


def view(*_):
    settings = WebKit2.Settings(enable_write_console_messages_to_stdout=True)
    new_view = WebKit2.WebView(web_context=context, is_controlled_by_automation=True, settings=settings)
    window = Gtk.Window(default_width=WIDTH, default_height=HEIGHT)
    window.add(new_view)
    window.show_all()
    new_view.connect("close", lambda _: Gtk.main_quit())
    return new_view


context.connect("automation-started", lambda _, session: session.connect("create-web-view", view))
Gtk.main()
