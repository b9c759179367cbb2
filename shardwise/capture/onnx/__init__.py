"""Turns ONNX files into training graphs; the onnx package is imported only when it is used."""

from shardwise.capture.onnx.capture import capture_onnx

__all__ = ["capture_onnx"]
