"""A folder that can go away at once, and come back, without a mount and its rights."""

import os
import threading


class Disk:
    """A link to a folder, or a file in its place, below which nothing can be written."""

    def __init__(self, path):
        self.path, self.content, self.next = path, path.with_name("content"), path.with_name("next")
        self.content.mkdir()
        self.come_back()

    def go_away(self, seconds=None):
        self.next.touch()
        os.replace(self.next, self.path)
        if seconds:
            threading.Timer(seconds, self.come_back).start()

    def come_back(self):
        self.next.symlink_to(self.content)
        os.replace(self.next, self.path)
