# SPDX-License-Identifier: Apache-2.0
"""The baselines of `flashrt bench ros`: a node that does nothing but answer, echo and beat."""

from __future__ import annotations

import sys
import threading
import time

from rclpy.node import Node
from sensor_msgs.msg import Image
from std_msgs.msg import Float64MultiArray, Header
from std_srvs.srv import Trigger

from ..ros import qos
from ..ros.process import leave, run_node

NAME = "bench_peer"


class Peer(Node):
    """`~/empty` answers at once, `~/echo` repeats an image's header, `~/beat` goes at a rate."""

    def __init__(self) -> None:
        super().__init__(NAME)
        self._echo = self.create_publisher(Header, "~/echo", qos.COMMAND)
        self._beat = self.create_publisher(Float64MultiArray, "~/beat", qos.COMMAND)
        self.create_service(Trigger, "~/empty", self._empty)
        self.create_subscription(Image, "~/image", self._on_image, qos.SENSOR)
        self._rate = self.declare_parameter("rate", 50.0).value
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._beating, name="beat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ending.set()
        self._thread.join()

    def _empty(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success = True
        return response

    def _on_image(self, message: Image) -> None:
        self._echo.publish(message.header)

    def _beating(self) -> None:
        message = Float64MultiArray(data=[0.0] * 5)
        begin, count = time.monotonic(), 0
        while not self._ending.is_set():
            self._beat.publish(message)
            count += 1
            time.sleep(max(begin + count / self._rate - time.monotonic(), 0.0))


if __name__ == "__main__":
    leave(run_node(Peer, sys.argv, threads=1))
