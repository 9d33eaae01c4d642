#!/usr/bin/env python3
"""Passes datagrams between brokers and tells them apart by flow: one flow for each port that a dialler sends from.

    udp_relay.py PORT UPSTREAM_PORT DIRECTORY

It listens on 127.0.0.1:PORT and hands on to 127.0.0.1:UPSTREAM_PORT, each flow from a socket of its own. DIRECTORY/flows has
a line for each flow, '<port the dialler sends from> <port the other end sees> <bytes both ways>'. Flows whose second number
is in DIRECTORY/cut are passed on no more, in neither direction, without a word.
"""

import os
import select
import socket
import sys
import time


def bound(port):
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    udp.bind(("127.0.0.1", port))
    udp.setblocking(False)
    return udp


def write(path, text):
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(path + ".new", path)


def main():
    port, upstream, directory = int(sys.argv[1]), ("127.0.0.1", int(sys.argv[2])), sys.argv[3]
    front = bound(port)
    # By the dialler's address, and by the socket towards the other end: [dialler, socket, port of the socket, bytes].
    by_dialler, by_socket = {}, {}
    cut, told = set(), 0.0
    while True:
        for udp in select.select([front, *by_socket], [], [], 0.05)[0]:
            for _ in range(256):
                try:
                    data, sender = udp.recvfrom(65536)
                except (BlockingIOError, ConnectionError):
                    break
                if udp is front and sender not in by_dialler:
                    back = bound(0)
                    by_dialler[sender] = by_socket[back] = [sender, back, back.getsockname()[1], 0]
                flow = by_dialler[sender] if udp is front else by_socket[udp]
                if flow[2] in cut:
                    continue
                flow[3] += len(data)
                try:
                    (flow[1] if udp is front else front).sendto(data, upstream if udp is front else flow[0])
                except (BlockingIOError, ConnectionError):
                    pass
        if time.monotonic() - told >= 0.05:
            told = time.monotonic()
            try:
                with open(os.path.join(directory, "cut"), encoding="utf-8") as file:
                    cut = {int(word) for word in file.read().split()}
            except FileNotFoundError:
                pass
            lines = (f"{flow[0][1]} {flow[2]} {flow[3]}\n" for flow in by_dialler.values())
            write(os.path.join(directory, "flows"), "".join(lines))


main()
